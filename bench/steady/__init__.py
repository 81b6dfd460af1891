"""Many trajectories in flight over many engines and explorers, for as long as one likes: `bench.steady.__main__`."""

"""Many trajectories in flight, over many engines and explorers, for as long as one likes: see `bench.steady.__main__`."""

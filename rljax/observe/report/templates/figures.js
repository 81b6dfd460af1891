(async () => {
  // plotly.js itself: gzip, in base64, which is well under half of its length.
  const packed = Uint8Array.from(atob(document.getElementById('plotly').textContent), (letter) => letter.charCodeAt(0));
  const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream('gzip'));
  const library = document.createElement('script');
  library.textContent = await new Response(unpacked).text();
  document.head.append(library);
  const figures = document.getElementById('figures').textContent;
  const buttons = ['zoom2d', 'pan2d', 'zoomIn2d', 'zoomOut2d', 'resetScale2d', 'toImage'];
  // A finger that draws over a figure scrolls the page: there the buttons zoom.
  const touch = matchMedia('(pointer: coarse)').matches;
  const options = {responsive: true, displaylogo: false, modeBarButtons: [buttons]};
  const draw = () => {
    const style = getComputedStyle(document.documentElement);
    const coloured = figures.replace(/var\((--\w+)\)/g, (found, name) => style.getPropertyValue(name).trim());
    for (const [place, figure] of Object.entries(JSON.parse(coloured))) {
      if (touch) figure.layout.dragmode = false;
      Plotly.react(place, figure.data, figure.layout, options);
    }
  };
  draw();
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);
})();

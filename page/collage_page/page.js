"use strict";
// What is drawn was laid out when the page was written: here it is shown, searched and clicked.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const most = 50;
  const margin = 20;
  const readable = 0.9;
  const invitation = document.getElementById("hint").textContent;

  const style = [
    { selector: "node", style: { label: "data(label)", "font-size": 11, "min-zoomed-font-size": 6,
      "text-valign": "center", "background-color": "#fff", "border-width": 1, "border-color": "#555",
      shape: "round-rectangle", width: 104, height: 26, "z-index": 2, "z-index-compare": "manual" } },
    { selector: "node[kind = 'group']", style: { "background-color": "data(colour)", "background-opacity": 0.3,
      "border-color": "data(colour)", "border-style": "data(border)", "border-width": 2, width: "data(width)",
      height: "data(height)", "text-valign": "top", "text-margin-y": 14, "z-index": 0 } },
    { selector: "node[kind = 'conversion']", style: { shape: "hexagon", width: 84, height: 22,
      "background-color": "data(colour)", "background-opacity": 0.5, "border-color": "#c22", "border-width": 2 } },
    { selector: "node[kind = 'end']", style: { shape: "ellipse", height: 22, "background-color": "#eee" } },
    { selector: "edge", style: { "z-index": 1, "z-index-compare": "manual", width: "data(width)", "line-color": "#999", "target-arrow-color": "#999",
      "target-arrow-shape": "triangle", "arrow-scale": 0.8, "curve-style": "bezier" } },
    { selector: "edge[weights]", style: { "curve-style": "round-segments", "segment-weights": "data(weights)",
      "segment-distances": "data(distances)", "edge-distances": "node-position" } },
    { selector: "edge[?far]", style: { "line-style": "dashed", opacity: 0.4 } },
    { selector: "edge[kind = 'converted']", style: { "line-color": "#e08a00", "target-arrow-color": "#e08a00" } },
    { selector: "edge[kind = 'transfer']", style: { "line-color": "#c22", "target-arrow-color": "#c22" } },
    { selector: ".by-time", style: { "background-color": "mapData(heat, 0, 1, #fff7d6, #b40426)",
      "background-opacity": 0.8, "border-color": "#777" } },
    { selector: ".is-moved", style: { "background-color": "#ffd24d", "border-width": 2, "border-color": "#b36b00" } },
    { selector: ".chosen", style: { "border-width": 4, "border-color": "#000" } },
    { selector: "edge.near", style: { "line-color": "#000", "target-arrow-color": "#000", label: "data(label)",
      "font-size": 9, "text-background-color": "#fff", "text-background-opacity": 0.8 } },
  ];

  // Zoom and pan that show a graph at its top, large enough to be read, or all of it.
  function beginning(graph, container, least = readable) {
    const [width, height] = [container.clientWidth, container.clientHeight];
    const across = (width - 2 * margin) / graph.width;
    const whole = Math.min(across, (height - 2 * margin) / graph.height, 1);
    const zoom = Math.max(whole, Math.min(least, across));
    return { zoom, pan: { x: (width - zoom * graph.width) / 2, y: margin } };
  }

  const graphs = data.graphs.map((graph, index) => {
    const cy = cytoscape({
      container: document.getElementById("graph-" + index),
      elements: graph.elements,
      layout: { name: "preset", fit: false },
      ...beginning(graph, document.getElementById("graph-" + index)),
      style,
      autoungrabify: true,
      boxSelectionEnabled: false,
      hideEdgesOnViewport: graph.elements.length > 1500,
      maxZoom: 4,
      minZoom: 0.01,
    });
    cy.on("tap", "node", (event) => choose(index, event.target));
    cy.on("tap", "edge", (event) => {
      clear();
      event.target.addClass("near");
      document.getElementById("hint").textContent = event.target.data("label");
    });
    cy.on("tap", (event) => { if (event.target === cy) clear(); });
    return cy;
  });

  function clear() {
    for (const cy of graphs) cy.elements(".chosen, .near").removeClass("chosen near");
    for (const section of document.querySelectorAll("section.detail")) section.hidden = true;
    const hint = document.getElementById("hint");
    hint.hidden = false;
    hint.textContent = invitation;
  }

  // Marks a node with its group, and the same operator in the other graph; shows what is known of it.
  function choose(index, node) {
    clear();
    const name = node.data("kind") === "operator" ? node.data("name") : undefined;
    graphs.forEach((cy, other) => {
      const same = other === index ? node
        : cy.nodes("[kind = 'operator']").filter((found) => name !== undefined && found.data("name") === name);
      const group = same.length ? same.data("group") : undefined;
      const together = group === undefined ? same : cy.nodes("[group = " + group + "]");
      same.union(together.filter("[kind = 'group']")).addClass("chosen");
      together.union(same).connectedEdges().addClass("near");
    });
    const id = node.data("group") !== undefined ? "g" + node.data("group") : node.id();
    const section = document.getElementById("detail-" + index + "-" + id);
    if (section) {
      section.hidden = false;
      document.getElementById("hint").hidden = true;
      section.scrollIntoView({ block: "nearest" });
    }
  }

  function goTo(index, node) {
    const cy = graphs[index];
    choose(index, node);
    cy.animate({ center: { eles: node }, zoom: Math.max(cy.zoom(), 1) }, { duration: 200 });
  }

  const search = document.getElementById("search");
  const found = document.getElementById("found");

  // A label has room for some of it.
  function typeOf(node) { return node.data("op") || node.data("kind"); }

  function matching(text) {
    const wanted = text.trim().toLowerCase();
    if (!wanted) return [];
    return graphs.flatMap((cy, index) => cy.nodes("[name]").toArray()
      .filter((node) => (node.data("name") + " " + typeOf(node)).toLowerCase().includes(wanted))
      .map((node) => ({ index, node })));
  }

  function list() {
    const matches = matching(search.value);
    found.replaceChildren(...matches.slice(0, most).map(({ index, node }) => {
      const button = document.createElement("button");
      button.type = "button";
      const where = graphs.length > 1 ? ["here: ", "there: "][index] : "";
      button.textContent = where + node.data("name") + " (" + typeOf(node) + ")";
      button.addEventListener("click", () => { found.hidden = true; goTo(index, node); });
      const item = document.createElement("li");
      item.append(button);
      return item;
    }));
    if (matches.length > most) {
      const item = document.createElement("li");
      item.textContent = "and " + (matches.length - most) + " more";
      found.append(item);
    }
    if (!matches.length && search.value.trim()) {
      const item = document.createElement("li");
      item.textContent = "no such operator";
      found.append(item);
    }
    found.hidden = !search.value.trim();
  }

  search.addEventListener("input", list);
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter") {
      const first = matching(search.value)[0];
      if (first) { found.hidden = true; goTo(first.index, first.node); }
    }
    if (event.key === "Escape") found.hidden = true;
  });
  document.getElementById("fit").addEventListener("click", () => graphs.forEach((cy, index) => {
    cy.viewport(beginning(data.graphs[index], cy.container(), 0));
  }));
  document.getElementById("colour").addEventListener("change", (event) => {
    for (const cy of graphs) {
      cy.elements(".by-time, .is-moved").removeClass("by-time is-moved");
      if (event.target.value === "time") cy.nodes("[kind = 'group']").addClass("by-time");
      if (event.target.value === "moved") cy.nodes("[?moved]").addClass("is-moved");
    }
  });
  window.collage = { graphs };
})();

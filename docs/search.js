// The order of the results: lessons, then the pages beside them, then modules; in each by Sphinx's own score.
Scorer.score = ([docname, , , , score]) => {
  const isModule = docname === "interface" || docname.startsWith("interface/");
  return score + (docname.startsWith("lessons/") ? 2000 : isModule ? 0 : 1000);
};

"use strict";
for (const panel of document.querySelectorAll(".confusion")) {
  const of = JSON.parse(panel.dataset.thresholds);
  const element = (id) => document.getElementById(panel.dataset.prefix + id);
  const slider = element("threshold-slider");
  const costs = ["cost-false-positive", "cost-false-negative"].map(element);
  const nRows = of.n_positive + of.n_negative;
  const count = new Intl.NumberFormat("en-GB");
  const say = (id, text) => { element(id).textContent = text; };
  const share = (value) => Number.isFinite(value) ? `${(100 * value).toFixed(1)}%` : "\u2013";
  const costOf = (input) => Math.max(0, Number.parseFloat(input.value) || 0);
  const perRow = (falsePositive, falseNegative) =>
    (falsePositive * costOf(costs[0]) + falseNegative * costOf(costs[1])) / nRows;
  const costAt = (place) => perRow(of.false_positive[place], of.n_positive - of.true_positive[place]);
  const cheapest = () => of.probability.reduce((best, _, place) => costAt(place) < costAt(best) ? place : best, 0);
  const threshold = (place) => `${of.probability[place].toFixed(4)} (${of.axis} ${of.score[place].toPrecision(4)})`;

  const show = () => {
    const place = Number(slider.value);
    const found = of.true_positive[place], wrong = of.false_positive[place];
    const missed = of.n_positive - found, passed = of.n_negative - wrong;
    const least = cheapest();
    say("threshold-value", threshold(place));
    slider.setAttribute("aria-valuetext", `probability ${threshold(place)}`);
    say("true-positive", count.format(found));
    say("false-positive", count.format(wrong));
    say("false-negative", count.format(missed));
    say("true-negative", count.format(passed));
    say("rows-above", `${count.format(found + wrong)} (${share((found + wrong) / nRows)})`);
    say("precision", share(found / (found + wrong)));
    say("recall", share(found / of.n_positive));
    say("false-positive-rate", share(wrong / of.n_negative));
    say("accuracy", share((found + passed) / nRows));
    say("f1", (2 * found / (2 * found + wrong + missed)).toFixed(3));
    say("cost", costAt(place).toPrecision(4));
    say("least-cost", `${costAt(least).toPrecision(4)} at ${of.probability[least].toFixed(4)}`);
    say("cost-all-positive", perRow(of.n_negative, 0).toPrecision(4));
    say("cost-all-negative", perRow(0, of.n_positive).toPrecision(4));
  };
  for (const input of [slider, ...costs]) input.addEventListener("input", show);
  element("lowest-cost").addEventListener("click", () => { slider.value = String(cheapest()); show(); });
  panel.hidden = false;
  show();
}

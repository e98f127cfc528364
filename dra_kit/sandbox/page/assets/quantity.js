// Quantities of Kubernetes ("40Gi", "250m") as numbers, exact enough for bars.

const FACTORS = {
  n: 1e-9, u: 1e-6, m: 1e-3, "": 1, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, E: 1e18,
  Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30, Ti: 2 ** 40, Pi: 2 ** 50, Ei: 2 ** 60,
};

export function number(quantity) {
  const found = /^([+-]?[0-9.]+)(?:([eE][+-]?[0-9]+)|([numkMGTPE]?i?))$/.exec(String(quantity));
  if (!found) return 0;
  return found[2] ? Number(found[1] + found[2]) : Number(found[1]) * (FACTORS[found[3]] ?? 1);
}

/** A number in the unit of a quantity: `like(3 * 2 ** 30, "80Gi")` is "3Gi". */
export function like(value, quantity) {
  const suffix = /([numkMGTPE]?i?)$/.exec(String(quantity))[1];
  return `${Number((value / (FACTORS[suffix] ?? 1)).toPrecision(6))}${suffix}`;
}

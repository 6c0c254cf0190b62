/** Numbers as people read them. */

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** Three digits: 0.0123, 1.23, 12.3, 123, 12,300. */
export function digits(value) {
  const size = Math.abs(value);
  if (size >= 100 || value === 0) return grouped.format(value);
  return Number(value.toPrecision(size < 0.01 ? 2 : 3)).toString();
}

const units = {
  count: digits,
  ratio: (value) => `${digits(value * 100)} %`,
  multiple: (value) => `${digits(value)}×`,
  dollars: (value) => `$${value < 100 ? value.toFixed(2) : grouped.format(value)}`,
  seconds: (value) => (value !== 0 && Math.abs(value) < 1 ? `${digits(value * 1000)} ms` : `${digits(value)} s`),
  advice: (value) => (value ? "on" : "off"),
};

/** A known number in its unit. */
export function written(value, unit) {
  return units[unit](value);
}

/** How long ago, in words. */
export function ago(seconds) {
  if (seconds === null) return "never seen";
  if (seconds < 10) return `${seconds.toFixed(1)} s ago`;
  return seconds < 120 ? `${Math.round(seconds)} s ago` : `${Math.round(seconds / 60)} min ago`;
}

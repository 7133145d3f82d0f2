// Numbers, sizes and times as people read them.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const COUNTS = ["", " k", " M", " G", " T"];
const number = new Intl.NumberFormat("en");
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const calendar = new Intl.DateTimeFormat(undefined, {
  day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23", timeZoneName: "short",
});
const days = new Intl.DateTimeFormat(undefined, { weekday: "long", day: "numeric", month: "long", year: "numeric" });
const offset = new Intl.DateTimeFormat("en", { timeZoneName: "longOffset" });

function scaled(value, step, units) {
  let index = 0;
  while (value >= step && index < units.length - 1) {
    value /= step;
    index += 1;
  }
  const digits = index === 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  // 1.00 MiB is 1 MiB: what sizes mostly are.
  return [value.toFixed(digits).replace(/\.0+$/, ""), units[index]];
}

/** Bytes in the largest fitting unit, to three digits. */
export const bytes = (value) => scaled(value, 1024, UNITS).join(" ");

/** A count to three digits: 12.3 k. */
export const short = (value) => scaled(value, 1000, COUNTS).join("");

/** A count in full: 12,345. */
export const count = (value) => number.format(value);

/** A count with its noun: 1 region, 2 regions. */
export const some = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;

/** Share of a whole, as a percentage without decimals; never 0 or 100 for what is not. */
export function percent(part, whole) {
  if (whole === 0 || part === 0) return "0 %";
  const exact = (100 * part) / whole;
  return part < whole ? `${Math.min(99, Math.max(1, Math.round(exact)))} %` : "100 %";
}

/** A byte address. */
export const address = (value) => `0x${value.toString(16)}`;

/** The time of day at a moment. */
export const time = (ms) => clock.format(new Date(ms));

/** The day of a moment. */
export const day = (ms) => days.format(new Date(ms));

/** The reader's time zone, which all times are given in: Europe/Berlin, UTC+01:00. */
export function zone() {
  const name = offset.resolvedOptions().timeZone;
  const found = offset.formatToParts(new Date()).find((part) => part.type === "timeZoneName")?.value ?? "";
  const shift = found.replace("GMT", "UTC");
  return name === "UTC" || name === shift ? "UTC" : `${name}, ${shift}`;
}

/** Day, time and time zone. */
export const moment = (ms) => calendar.format(new Date(ms));

/** A length of time in one unit: 12 s, 3 min, 5 h, 2 days. */
export function span(ms) {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 2 * 86400) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} days`;
}

/** snake_case as words. */
export const words = (label) => String(label).replaceAll("_", " ");

// Numbers as a person reads them.

export function number(value, digits = 5) {
  return value === null || value === undefined ? "" : String(Number(value.toPrecision(digits)));
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${number(seconds, 3)} s`;
  const whole = Math.round(seconds);
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  return hours ? `${hours} h ${String(minutes).padStart(2, "0")} min` : `${minutes} min ${String(rest).padStart(2, "0")} s`;
}

export function bytes(count) {
  if (count === null || count === undefined) return "";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let place = 0;
  for (; count >= 1000 && place < units.length - 1; place += 1) count /= 1000;
  return `${number(count, 3)} ${units[place]}`;
}

export function time(unix) {
  return new Date(unix * 1000).toISOString().slice(0, 19).replace("T", " ") + " UTC";
}

export function counted(count, word) {
  return `${count || "no"} ${word}${count === 1 ? "" : "s"}`;
}

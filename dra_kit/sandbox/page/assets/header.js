// The header, the banner and the boxes of drivers that do not serve.

import { h, update, write } from "./dom.js";

const MODES = {
  connecting: ["○", "connecting", "wait"],
  live: ["●", "live", "good"],
  paused: ["❚❚", "paused", "wait"],
  replay: ["▶", "replay", "good"],
  end: ["■", "end of the recording", "wait"],
  lost: ["○", "connection lost", "bad"],
  ended: ["■", "the sandbox has ended", "wait"],
};

export function drawHeader(view, app) {
  const { state } = view;
  const drivers = new Set([...state.drivers, ...[...state.plugins.values()].map((plugin) => plugin.driver)]);
  const title = [...drivers].join(" and ") || app.title || "dra-kit sandbox";
  write(document.getElementById("title"), title);
  const pending = view.counts.find((count) => count.name === "pending");
  document.title = `${pending ? `${pending.text}: ` : ""}${title} – dra-kit sandbox`;
  write(document.getElementById("release"), state.version ? `Kubernetes ${state.version.replace(/^v/, "")}` : "");
  const [mark, text, tone] = MODES[modeOf(app)];
  const mode = document.getElementById("mode");
  write(mode, `${mark} ${text}`);
  mode.className = `mode ${tone}`;
  update(document.getElementById("counts"), view.counts.map((count) => countItem(count, app)));
}

function modeOf(app) {
  if (app.status === "connecting") return "connecting";
  if (app.status === "lost" || app.status === "refused") return "lost";
  if (!app.following && !app.playing && app.count < app.records.length) return "paused";
  if (app.replay) return app.count >= app.records.length ? "end" : app.playing ? "replay" : "paused";
  if (app.status === "ended") return "ended";
  return app.following ? "live" : "paused";
}

function countItem(count, app) {
  const pressed = count.filter !== null && app.isFilter(count.filter);
  return {
    key: count.name,
    look: `${count.text} ${pressed}`,
    make: () => h("li", {}, count.filter === null ? count.text : h("button", {
      type: "button", class: "link", "aria-pressed": String(pressed),
      title: pressed ? "Show all again" : `Show only: ${count.text}`,
      data: { focus: count.name }, on: { click: () => app.toggleFilter(count.filter) },
    }, count.text)),
  };
}

const LOST = "Connection to the sandbox lost. The page shows what it has received, and connects again by itself. "
  + "Explanations and output come back then.";
const ENDED = "The sandbox has ended. The page still shows what it has received, without explanations and output.";
const REFUSED = "The sandbox does not accept this page: it was started again, or the address lacks its token. "
  + "Open the URL that dra-kit printed.";

export function drawBanner(view, app) {
  const banner = document.getElementById("banner");
  const text = { lost: LOST, ended: app.replay ? "" : ENDED, refused: REFUSED }[app.status] ?? "";
  const atEnd = app.replay && app.records.length > 0 && app.count >= app.records.length;
  const look = `${text}${atEnd}`;
  banner.hidden = !text && !atEnd;
  if (banner.look === look) return;
  banner.look = look;
  banner.className = app.status === "lost" || app.status === "refused" ? "bad" : "";
  if (atEnd && !text) banner.replaceChildren(...endOfReplay(view, app));
  else banner.replaceChildren(text);
}

function endOfReplay(view, app) {
  const { result } = view.state;
  const failures = result?.failures?.length ? `: ${result.failures.join("; ")}` : ".";
  const outcome = result ? `The run ${result.passed ? "passed." : `failed${failures}`} ` : "";
  return [
    `The recording ends here. ${outcome}`,
    h("button", { type: "button", class: "link", on: { click: () => app.replayAgain() } }, "Play it again"),
  ];
}

export function drawProblems(view) {
  update(document.getElementById("drivers"), view.problems.map((problem) => ({
    key: problem.key,
    look: `${problem.title}${problem.words}`,
    make: () => h("div", { class: "problem", role: "status" }, h("b", {}, `✗ ${problem.title}`),
      problem.words && h("p", {}, `${problem.who} reports: `, h("q", {}, problem.words)),
      problem.hint && h("p", { class: "soft" }, problem.hint)),
  })));
}

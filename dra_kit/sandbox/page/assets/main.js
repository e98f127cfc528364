// The page of a sandbox: records come in, one moment of them is shown, and all parts follow the selection.

import { Answers } from "./answers.js";
import { Connection, takeToken } from "./connection.js";
import { drawBanner, drawHeader, drawProblems } from "./header.js";
import { drawNodes, listenToNodes } from "./nodes.js";
import { drawPanel } from "./panel.js";
import { drawPods, listenToPods } from "./pods.js";
import { Records } from "./records.js";
import { Track } from "./timeline.js";
import { relatedTo, viewOf } from "./view.js";
import { sentence, tone } from "./words.js";

const FEWEST = 50; // milliseconds between two drawings while records pour in

class App {
  constructor() {
    this.records = new Records();
    this.title = "";
    this.replay = false;
    this.status = "connecting";
    this.following = true; // the newest moment is shown
    this.playing = false; // a recording
    this.count = 0; // how many records the shown moment has
    this.place = 0; // of the moment on the track
    this.selection = null;
    this.related = { devices: new Set(), rows: new Set(), node: "" };
    this.filter = {};
    this.sort = { column: "", descending: false };
    this.unfolded = new Set();
    this.nodeInFocus = "";
    this.allRows = false;
    this.waiting = false;
    this.drawnAt = 0;
    this.connection = new Connection(takeToken(), {
      about: (info) => this.about(info),
      records: (records) => this.take(records),
      reset: () => this.reset(),
      status: (name) => this.setStatus(name),
    });
    this.answers = new Answers(this);
    this.track = new Track(this);
  }

  // --- from the connection

  about({ mode, title }) {
    this.title = title;
    this.replay = mode === "replay";
    this.following = !this.replay;
    this.playing = this.replay && !matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (this.playing) this.play();
  }

  reset() {
    this.records.clear();
    this.follow();
  }

  setStatus(name) {
    if (this.status === name) return;
    const before = this.status;
    this.status = name;
    if (name === "lost") this.say("Connection to the sandbox lost.");
    if (name === "live" && before === "lost") this.say("Connected again.");
    if (name === "ended" && !this.replay) this.say("The sandbox has ended.");
    this.draw();
  }

  take(records) {
    for (const record of records) this.records.add(record);
    if (this.following) this.follow();
    else this.draw();
  }

  canAsk() {
    return this.status === "live" || (this.replay && this.status === "ended");
  }

  // --- moments

  /** The number of the newest record of the shown moment. */
  get momentNumber() {
    return this.records.all[this.count - 1]?.number ?? 0;
  }

  /** Show the newest moment, and each new one. */
  follow() {
    this.following = !this.replay;
    this.count = this.records.length;
    this.place = this.records.end;
    this.draw();
  }

  /** Show the moment after so many records. */
  goTo(count) {
    this.following = false;
    this.playing = false;
    this.count = Math.min(Math.max(count, 0), this.records.length);
    this.place = this.records.places[this.count - 1] ?? 0;
    this.draw();
  }

  goToPlace(place) {
    this.goTo(this.records.countAt(place));
    this.place = place;
  }

  /** Go to the next or the previous event that has a tick. */
  step(by) {
    let count = this.count + by;
    while (count > 0 && count < this.records.length && !tone(this.records.all[count - 1])) count += by;
    this.goTo(count);
    const record = this.records.all[this.count - 1];
    if (record) this.say(sentence(record));
  }

  pause() {
    if (this.replay) {
      if (this.playing) this.goTo(this.count);
      else if (this.count >= this.records.length) this.replayAgain();
      else this.play();
    } else if (this.following) {
      this.goTo(this.count);
    } else {
      this.follow();
    }
    this.say(this.following ? "Live." : this.playing ? "Playing." : "Paused.");
  }

  replayAgain() {
    this.goTo(0);
    this.play();
  }

  /** Play a recording in its own time, without its long pauses. */
  play() {
    this.playing = true;
    const run = this.run = {};
    let before = performance.now();
    const tick = (now) => {
      if (!this.playing || this.run !== run) return;
      this.place = Math.min(this.place + (now - before) / 1000, this.records.end);
      before = now;
      const count = this.records.countAt(this.place);
      if (this.records.length && this.place >= this.records.end) this.playing = false;
      this.count = count;
      this.draw();
      requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
  }

  // --- selection, filters, order

  select(selection, node = "") {
    const same = selection && this.selection?.id === selection.id;
    this.selection = same ? null : selection;
    if (node) this.nodeInFocus = node;
    this.chosen = true; // say it once it is drawn
    this.draw();
  }

  focusNode(name) {
    if (this.nodeInFocus === name) return;
    this.nodeInFocus = name;
    this.draw();
  }

  unfold(node) {
    this.unfolded.add(node);
    this.draw();
  }

  /** Keep a part folded or unfolded when it is drawn again. */
  remember(name, open) {
    if (open) this.unfolded.add(name);
    else this.unfolded.delete(name);
  }

  isFilter(filter) {
    const names = Object.keys(filter);
    return names.length > 0 && names.every((name) => this.filter[name] === filter[name]);
  }

  toggleFilter(filter) {
    const { text } = this.filter;
    this.filter = { ...(this.isFilter(filter) ? {} : filter), text };
    this.draw();
  }

  findText(text) {
    this.filter = { ...this.filter, text };
    this.draw();
  }

  sortBy(column) {
    const { sort } = this;
    if (sort.column !== column) this.sort = { column, descending: false };
    else this.sort = sort.descending ? { column: "", descending: false } : { column, descending: true };
    this.draw();
  }

  showAllRows() {
    this.allRows = true;
    this.draw();
  }

  // --- drawing

  say(text) {
    document.getElementById("said").textContent = text;
  }

  /** Draw soon: all that changes until then is drawn at once. */
  draw() {
    if (this.waiting) return;
    this.waiting = true;
    const pause = Math.max(0, this.drawnAt + FEWEST - performance.now());
    setTimeout(() => requestAnimationFrame(() => this.drawNow()), this.following && pause);
  }

  drawNow() {
    performance.mark("draw");
    this.waiting = false;
    const view = viewOf(this.records.stateAfter(this.count));
    this.related = relatedTo(view, this.selection);
    drawHeader(view, this);
    drawBanner(view, this);
    drawProblems(view);
    drawNodes(view, this);
    drawPods(view, this);
    drawPanel(view, this);
    this.drawControls();
    this.track.draw();
    if (this.chosen) this.announceSelection();
    this.drawnAt = performance.now();
    performance.measure("drawing", "draw");
  }

  announceSelection() {
    this.chosen = false;
    const heading = document.getElementById("panel-title");
    if (this.selection && matchMedia("(max-width: 62rem)").matches) document.getElementById("panel").scrollIntoView();
    if (this.selection && heading) this.say(`${heading.textContent}: ${heading.nextElementSibling?.textContent ?? ""}`);
  }

  drawControls() {
    const button = document.getElementById("pause");
    const runs = this.following || this.playing;
    const text = runs ? "Pause" : this.replay ? "Play" : "Go live";
    if (button.textContent !== text) button.textContent = text;
    document.getElementById("back").disabled = this.count === 0;
    document.getElementById("forward").disabled = this.count >= this.records.length;
  }
}

function listenToKeys(app) {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    const { target } = event;
    const slider = target.id === "slider";
    const typing = !slider && target.closest("input, textarea, select, [contenteditable]");
    if (typing) return;
    const pressing = target.closest("button, a, summary");
    if (target.closest("pre")) return; // arrows scroll it
    if (event.key === " " && !pressing) app.pause();
    else if (event.key === "ArrowRight" || (slider && event.key === "ArrowUp")) app.step(1);
    else if (event.key === "ArrowLeft" || (slider && event.key === "ArrowDown")) app.step(-1);
    else if (slider && event.key === "Home") app.goTo(0);
    else if (slider && event.key === "End") app.goTo(app.records.length);
    else if (event.key === "Escape" && app.selection) app.select(null);
    else return;
    event.preventDefault();
  });
}

function start() {
  const app = new App();
  listenToNodes(app);
  listenToPods(app);
  listenToKeys(app);
  document.getElementById("pause").addEventListener("click", () => app.pause());
  document.getElementById("back").addEventListener("click", () => app.step(-1));
  document.getElementById("forward").addEventListener("click", () => app.step(1));
  app.draw();
  app.connection.follow();
}

start();

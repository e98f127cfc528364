// The timeline: a tick for each event, and a slider over them.

import { write } from "./dom.js";
import { clock, counted, sentence, tone } from "./words.js";

const HEIGHTS = { event: 9, call: 16, warn: 22 };

export class Track {
  constructor(app) {
    this.app = app;
    this.slider = document.getElementById("slider");
    this.canvas = document.getElementById("ticks");
    this.drawn = "";
    this.totals = { count: 0, calls: 0, warnings: 0 };
    this.slider.addEventListener("input", () => app.goToPlace(Number(this.slider.value)));
    this.size = { width: 0, height: 0 }; // observed: to ask for it would have the browser lay out the page at once
    const observer = new ResizeObserver(([{ contentRect }]) => { this.size = contentRect; app.draw(); });
    observer.observe(this.canvas.parentElement);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.drawn = ""; app.draw(); });
  }

  draw() {
    const { app, slider } = this;
    const { records } = app;
    const record = records.all[app.count - 1];
    slider.max = String(records.end);
    if (Number(slider.value) !== app.place) slider.value = String(app.place);
    const place = `event ${app.count} of ${records.length}`;
    slider.setAttribute("aria-valuetext", record ? `${clock(record)}, ${place}: ${sentence(record)}` : place);
    write(document.getElementById("clock"), record ? clock(record) : "");
    write(document.getElementById("moment"), this.summary(record));
    this.drawTicks();
  }

  summary(record) {
    this.count();
    const { calls, warnings } = this.totals;
    const parts = [counted(this.app.records.length, "event"), counted(calls, "call")];
    if (warnings) parts.push(counted(warnings, "warning"));
    const totals = parts.join(" · ");
    return record && !this.app.following ? `${this.app.count} of ${totals} — ${sentence(record)}` : totals;
  }

  count() {
    const { totals } = this;
    const { all } = this.app.records;
    if (totals.count > all.length) Object.assign(totals, { count: 0, calls: 0, warnings: 0 });
    for (; totals.count < all.length; totals.count += 1) {
      const record = all[totals.count];
      if (record.kind === "CallStarted") totals.calls += 1;
      if (tone(record) === "warn") totals.warnings += 1;
    }
  }

  drawTicks() {
    const { canvas, size: { width, height }, app: { records } } = this;
    const look = `${width} ${records.length} ${records.all[0]?.number}`;
    if (look === this.drawn || !width) return;
    this.drawn = look;
    const scale = devicePixelRatio || 1;
    canvas.width = width * scale;
    canvas.height = height * scale;
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    this.paint(pen, width, height);
  }

  paint(pen, width, height) {
    const { records } = this.app;
    const [event, call, warn] = [...document.querySelectorAll("#legend i")].map((tick) => getComputedStyle(tick).color);
    const colours = { event, call, warn };
    const inset = 8; // half of the slider's thumb
    const columns = { event: new Set(), call: new Set(), warn: new Set() };
    for (let index = 0; index < records.length; index += 1) {
      const name = tone(records.all[index]);
      const share = records.places[index] / (records.end || 1);
      if (name) columns[name].add(Math.round(inset + share * (width - 2 * inset)));
    }
    for (const [name, places] of Object.entries(columns)) {
      pen.fillStyle = colours[name];
      for (const place of places) {
        pen.fillRect(place - 1, height - 8 - HEIGHTS[name], name === "event" ? 1.5 : 2, HEIGHTS[name]);
        if (name === "warn") triangle(pen, place, height - 8 - HEIGHTS[name]);
      }
    }
  }
}

function triangle(pen, place, top) {
  pen.beginPath();
  pen.moveTo(place, top - 5);
  pen.lineTo(place - 4, top + 2);
  pen.lineTo(place + 4, top + 2);
  pen.fill();
}

// The records that the page has, and the state at each of them.

import { copyOf, emptyState, fold } from "./state.js";

const STEP = 512; // records between two states that are kept
const LONGEST_PAUSE = 2; // seconds: longer times without events are drawn so short

export class Records {
  constructor() {
    this.clear();
  }

  clear() {
    this.all = [];
    this.places = []; // of each record on the track, in seconds without long pauses
    this.kept = [emptyState()]; // the states before record 0, STEP, 2 * STEP …
    this.newest = emptyState();
  }

  get length() {
    return this.all.length;
  }

  get end() {
    return this.places.at(-1) ?? 0;
  }

  add(record) {
    const before = this.all.at(-1);
    const pause = before ? Math.min(Math.max(record.seconds - before.seconds, 0), LONGEST_PAUSE) : 0;
    this.places.push(this.end + pause);
    this.all.push(record);
    fold(this.newest, record);
    if (this.all.length % STEP === 0) this.kept.push(copyOf(this.newest));
  }

  /** The state after the first `count` records; do not change it. */
  stateAfter(count) {
    if (count >= this.all.length) return this.newest;
    const step = Math.floor(count / STEP);
    const state = copyOf(this.kept[step]);
    for (const record of this.all.slice(step * STEP, count)) fold(state, record);
    return state;
  }

  /** How many records there are up to a place on the track. */
  countAt(place) {
    let low = 0;
    let high = this.places.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.places[middle] <= place) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}

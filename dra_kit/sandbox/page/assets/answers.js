// Answers of the server about the selected thing: explanations, and output of containers.

const REST = 1000; // milliseconds between two questions about the same thing
const MOST = 50; // answers that are kept

export class Answers {
  constructor(app) {
    this.app = app;
    this.known = new Map(); // by subject: {key, value, error, at}
    this.asking = new Set();
  }

  /**
   * What the server answers about a subject: `{value, error}`, undefined until it does.
   * A different `key` repeats the question; until its answer is there, the one before is shown.
   */
  about(subject, key, question) {
    const known = this.known.get(subject);
    if (known?.key !== key && !this.asking.has(subject) && this.app.canAsk()) {
      this.asking.add(subject);
      const pause = known ? Math.max(0, known.at + REST - Date.now()) : 0;
      setTimeout(() => this.ask(subject, key, question), pause);
    }
    return known;
  }

  async ask(subject, key, { path, parameters, read }) {
    const found = { key, at: Date.now(), value: undefined, error: "" };
    try {
      found.value = await read(await this.app.connection.ask(path, parameters));
    } catch (error) {
      found.error = error.status ? error.message : "the sandbox does not answer";
    }
    this.known.delete(subject);
    this.known.set(subject, found);
    if (this.known.size > MOST) this.known.delete(this.known.keys().next().value);
    this.asking.delete(subject);
    this.app.draw();
  }
}

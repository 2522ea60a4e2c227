// What the page says about its connection: live, reconnecting, and how old the data is.

import { announce, byId, say } from "./dom.js";
import { span, time } from "./format.js";

/** A disturbance that is over sooner than this is not announced, in milliseconds. */
const PATIENCE = 3_000;

export class Connection {
  constructor() {
    this.said = null;
    this.received = null;
    this.isLive = false;
    this.lostAt = null;
    setInterval(() => this.render(), 1_000);
    byId("notice-reload").addEventListener("click", () => location.reload());
    this.render();
  }

  /** Notes a state that the server has read at this time. */
  state(said) {
    this.said = said;
    this.begun = performance.now();
    this.alive();
  }

  /** Notes that the server has answered: without a new state, the last one still holds. */
  alive() {
    this.received = performance.now();
    this.isLive = true;
    this.error = null;
    if (this.isAnnounced) announce("Connected again. The data is live.");
    this.isAnnounced = false;
    this.lostAt = null;
    this.render();
  }

  /** Returns the time on the server's clock up to which the data is known to hold. */
  known() {
    return new Date(this.said.getTime() + this.received - this.begun);
  }

  lost(error) {
    this.isLive = false;
    this.error = error;
    this.lostAt ??= performance.now();
    this.render();
  }

  /** Tells that the server has another version than the page. */
  outdated(version) {
    this.version = version;
    this.render();
  }

  /** Shows that the page is paused since a time; null if it is not. */
  pause(since) {
    this.paused = since ?? null;
    this.render();
  }

  render() {
    const age = this.received === null ? null : performance.now() - this.received;
    const mode = this.mode();
    document.body.dataset.connection = mode;
    const texts = {
      connecting: "Connecting…",
      live: "Live",
      paused: "Paused",
      reconnecting: "Reconnecting…",
    };
    say(byId("connection-text"), texts[mode]);
    say(byId("connection-age"), this.said === null ? "" : this.age(mode, age));
    const text = this.notice(mode, age);
    byId("notice").hidden = text === null;
    if (text !== null) say(byId("notice-text"), text);
    byId("notice-reload").hidden = this.version == null || mode === "reconnecting";
    const isLong = this.lostAt !== null && performance.now() - this.lostAt > PATIENCE;
    if (isLong && !this.isAnnounced) {
      this.isAnnounced = true;
      announce("The connection is lost. Reconnecting. The data may be old.");
    }
  }

  mode() {
    if (!this.isLive) return this.said === null && !this.error ? "connecting" : "reconnecting";
    return this.paused ? "paused" : "live";
  }

  age(mode, age) {
    if (mode === "paused") return `at ${time(this.paused)}`;
    if (mode === "live") return time(this.known());
    return `data is ${span(age)} old`;
  }

  notice(mode, age) {
    if (mode === "reconnecting") {
      const why = this.reason();
      if (this.said === null) return `No data yet. ${why}`;
      return `Stale data from ${time(this.known())}, ${span(age)} ago. ${why}`;
    }
    if (mode === "paused") return "Paused: the figures below do not change until you go on.";
    if (this.version != null) return `The server has been updated to version ${this.version}.`;
    return null;
  }

  /** Says why there is no connection, and what helps. */
  reason() {
    const { status, message } = this.error ?? {};
    if (status === 401) return "The server wants its token: open the page as /?token=TOKEN.";
    if (status === 403) return `The server refuses this page: ${message}.`;
    if (status === 429 || status === 503) return `The server is busy: ${message}. Reconnecting…`;
    if (status) return `The server answers: ${message}. Reconnecting…`;
    return "The server does not answer: is gpulimit serve running? Reconnecting…";
  }
}

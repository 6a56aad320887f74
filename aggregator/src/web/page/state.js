/* What has been told so far. Bounded: columns, lines and marks are let go of. */

const BIN_NS = 250e6;
const BINS = 480;
const ON_THE_WAY = 4;
const EVENTS = 200;

/** One lane's numbers and columns. */
class Lane {
  constructor() {
    this.base = 0;
    this.bins = [];
    this.told = null;
  }

  first() {
    return this.bins.length === 0 ? Infinity : this.base;
  }

  bin(at) {
    return this.bins[at - this.base];
  }

  apply(told) {
    this.told = told;
    if (told.bins.length === 0) {
      return;
    }
    if (this.bins.length === 0) {
      this.base = told.first_bin;
    }
    if (told.first_bin < this.base) {
      const missing = Math.min(BINS, this.base - told.first_bin);
      this.bins = new Array(missing).concat(this.bins);
      this.base -= missing;
    }
    told.bins.forEach((bin, at) => {
      const place = told.first_bin + at - this.base;
      if (place >= 0) {
        this.bins[place] = bin;
      }
    });
    if (this.bins.length > BINS + 64) {
      const old = this.bins.length - BINS;
      this.bins = this.bins.slice(old);
      this.base += old;
    }
  }
}

/** The run that is shown. */
class Run {
  constructor() {
    this.view = null;
    this.lanes = [];
    this.events = [];
    this.newestEvent = 0;
    this.missed = 0;
    this.heardAt = 0;
  }

  /** Takes in a view; gives back the lines that are new. */
  apply(view, heardAt) {
    if (view.is_whole) {
      if (this.view === null || this.view.run_id !== view.run_id) {
        this.events = [];
        this.newestEvent = 0;
      }
      this.lanes = [];
      this.missed = view.missed;
    }
    this.view = view;
    this.heardAt = heardAt;
    view.lanes.forEach((told, at) => {
      if (this.lanes[at] === undefined) {
        this.lanes[at] = new Lane();
      }
      this.lanes[at].apply(told);
    });
    /* Numbers begin anew with the aggregator. */
    const newest = view.events.length > 0 ? view.events[view.events.length - 1].number : 0;
    if (view.is_whole && newest < this.newestEvent) {
      this.events = [];
      this.newestEvent = 0;
    }
    const fresh = view.events.filter((event) => event.number > this.newestEvent);
    if (fresh.length > 0) {
      this.newestEvent = fresh[fresh.length - 1].number;
      this.events = this.events.concat(fresh).slice(-EVENTS);
    }
    return fresh;
  }

  /** Now, in ns after the begin, as far as that is known here. */
  now(at) {
    if (this.view === null) {
      return 0;
    }
    const runs = this.view.run_state === "running";
    return this.view.now_ns + (runs ? (at - this.heardAt) * 1e6 : 0);
  }
}

// Search runs in a worker, and browsers start none for a page that was opened from the disk: there it runs in a hidden
// frame instead. Elsewhere this does nothing.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inner = this.frame.contentWindow;
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inner.importScripts = (...all) =>
        all.reduce((before, one) => before.then(() => this.load(one)), Promise.resolve());
      this.ready = this.load(url);
    }

    load(url) {
      const inside = this.frame.contentDocument;
      return new Promise((done, failed) => {
        const script = inside.createElement("script");
        script.src = url;
        script.onload = done;
        script.onerror = () => failed(new Error(`${url} cannot be loaded`));
        inside.head.append(script);
      });
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}

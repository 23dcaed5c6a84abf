// Opens the Perfetto UI with the view that molprof has prepared. Runs before the UI's own script.
'use strict';
(() => {
  const view = /* VIEW */ null;

  // The UI keeps a copy of every trace in the browser's storage; of a local file there is no need.
  Object.defineProperty(window, 'caches', {value: undefined});

  // Where the UI looks for SQL packages that are not its own.
  Object.defineProperty(window, 'globals', {
    configurable: true,
    set(value) {
      value.extraSqlPackages.push(view.package);
      Object.defineProperty(window, 'globals', {value, configurable: true, writable: true});
    },
  });

  // The UI looks for an engine at a fixed port and talks to it through a socket. Ours is where the page came from.
  if (view.remote) {
    const fetched = window.fetch;
    window.fetch = (url, options) => {
      const asked = new URL(url, location.href);
      return asked.port === '9001' && asked.pathname === '/status' ? fetched('status') : fetched(url, options);
    };
    window.WebSocket = class {
      #last = Promise.resolve();
      constructor() {
        setTimeout(() => this.onopen());
      }
      send(body) {
        this.#last = this.#last.then(async () => {
          const reply = await fetched('rpc', {method: 'POST', body});
          if (!reply.ok) throw new Error(await reply.text());
          this.onmessage({data: await reply.blob()});
        }).catch((error) => {
          console.error(String(error));
          this.onerror({target: this});
        });
      }
      close() {}
    };
  }

  // The address without its fragment is all that a user has to keep: a reload opens the same view again.
  const route = new URLSearchParams({hideSidebar: 'true', startupCommands: JSON.stringify(view.commands)});
  if (!view.remote) route.set('url', new URL('trace/' + view.title, location.href));
  if (view.visible) {
    route.set('visStart', view.visible[0]);
    route.set('visEnd', view.visible[1]);
  }
  history.replaceState(null, '', '#!/viewer?' + route);

  // One message of a package may have 64 MiB. The UI registers one package itself, and takes it for under way ever after.
  const register = async (engine) => {
    for (const name of view.more) {
      const reply = await fetch(name);
      engine.pendingRegisterSqlPackage = undefined;
      await engine.registerSqlPackages(await reply.json());
    }
    document.body.dataset.packages = view.more.length;
  };

  // The UI asks whether to use the engine's trace: yes. And a pattern pins the row of a thread's slices and with it the
  // thread's own of the same name, which is empty.
  const tidy = setInterval(() => {
    const buttons = view.remote ? Array.from(document.querySelectorAll('button')) : [];
    buttons.find((button) => button.textContent === 'YES, use loaded trace')?.click();
    const workspace = window.app?.trace?.workspace;
    const rows = workspace?.pinnedTracks ?? [];
    for (const row of rows.filter((row) => /^\/thread_\d+$/.test(row.uri))) workspace.unpinTrack(row);
    if (workspace && (view.last === null || rows.some((row) => row.name === view.last))) {
      clearInterval(tidy);
      register(window.app.trace.engine.engine);
      // The UI has the process of most slices first, and shows the last pinned row: files stay in order, from the first.
      const places = new Map(view.hosts.map((name, number) => [name, number]));
      for (const row of workspace.children.filter((row) => places.has(row.name))) {
        row.sortOrder = 40 + places.get(row.name) / view.hosts.length;
        workspace.addChildInOrder(row);
      }
      setTimeout(() => document.querySelector('.pf-viewer-page__pinned-track-tree')?.scrollTo(0, 0), 300);
      window.raf.scheduleFullRedraw();
    }
  }, 100);
})();

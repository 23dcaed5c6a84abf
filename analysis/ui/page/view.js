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

  // The address without its fragment is all that a user has to keep: a reload opens the same view again.
  const route = new URLSearchParams({hideSidebar: 'true', startupCommands: JSON.stringify(view.commands)});
  if (!view.remote) route.set('url', new URL('trace/' + encodeURIComponent(view.title), location.href));
  if (view.visible) {
    route.set('visStart', view.visible[0]);
    route.set('visEnd', view.visible[1]);
  }
  history.replaceState(null, '', '#!/viewer?' + route);

  // A pattern pins the row of a thread's slices and with it the thread's own of the same name, which is empty.
  const tidy = setInterval(() => {
    const workspace = window.app?.trace?.workspace;
    const rows = workspace?.pinnedTracks ?? [];
    for (const row of rows.filter((row) => /^\/thread_\d+$/.test(row.uri))) workspace.unpinTrack(row);
    if (rows.some((row) => row.name === view.last)) {
      clearInterval(tidy);
      window.raf.scheduleFullRedraw();
    }
  }, 100);
})();

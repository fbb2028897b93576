// Before anything is shown: the theme that was chosen, here or in the web UI of the same address.
'use strict'
;(() => {
  /** @type {string | null} */
  let chosen = null
  try {
    chosen = localStorage.getItem('traceplane-theme')
  } catch {
    // A browser may keep nothing of files; the system's theme it is.
  }
  const root = document.documentElement
  if (chosen === 'dark' || chosen === 'light') root.dataset.theme = chosen
  root.classList.add('scripted')
})()

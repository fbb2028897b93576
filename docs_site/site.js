// Search, theme, menu and copying: all else is plain HTML. Checked by TypeScript in the build of the web UI.
'use strict'
;(() => {
  /** @typedef {[anchor: string, title: string, text: string, isRow?: 1]} Part A heading with its text, or a row. */
  /** @typedef {[address: string, title: string, section: string, parts: Part[]]} Page */
  /** @typedef {{ href: string, title: string, page: string, text: string, score: number }} Hit */

  const MOST_RESULTS = 30
  // What people type around what they look for.
  const STOP_WORDS = new Set(
    (
      'a about an and are as at be by can could do does for from get has have how i if in is it its me my of on or ' +
      'should so that the their there these this to was we what when where which who why will with you your'
    ).split(' '),
  )
  const root = document.body.dataset['root'] ?? './'

  /** @template {Element} T @param {string} selector @param {new () => T} type @returns {T} */
  function one(selector, type) {
    const found = document.querySelector(selector)
    if (!(found instanceof type)) throw new Error(`no ${selector}`)
    return found
  }

  // --- theme, menu, web UI ---------------------------------------------------------------------

  one('button.theme', HTMLButtonElement).addEventListener('click', () => {
    const html = document.documentElement
    const now = html.dataset['theme'] ?? (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light')
    html.dataset['theme'] = now === 'dark' ? 'light' : 'dark'
    try {
      localStorage.setItem('traceplane-theme', html.dataset['theme'])
    } catch {
      // A browser may keep nothing of files.
    }
  })

  const menu = one('button.menu', HTMLButtonElement)
  menu.addEventListener('click', () => {
    const open = menu.getAttribute('aria-expanded') !== 'true'
    menu.setAttribute('aria-expanded', String(open))
    document.body.classList.toggle('menu-open', open)
  })

  if (location.protocol !== 'file:') one('a.ui', HTMLAnchorElement).hidden = false
  document.querySelector('.navigation [aria-current]')?.scrollIntoView({ block: 'center' })
  scrollTo({ top: location.hash ? scrollY : 0 })

  // --- copying ---------------------------------------------------------------------------------

  for (const block of document.querySelectorAll('.block')) {
    const code = block.querySelector('code')
    if (!code || !navigator.clipboard) continue
    const button = document.createElement('button')
    button.type = 'button'
    button.className = 'copy'
    button.textContent = 'Copy'
    button.addEventListener('click', () => {
      const text = code.textContent ?? ''
      const prompts = code.classList.contains('language-console')
      const copied = prompts ? text.split('\n').filter((l) => l.startsWith('$ ')).map((l) => l.slice(2)).join('\n') : text
      void navigator.clipboard.writeText(copied).then(() => {
        button.textContent = 'Copied'
        setTimeout(() => (button.textContent = 'Copy'), 1500)
      })
    })
    block.append(button)
  }

  // --- where one is ----------------------------------------------------------------------------

  const entries = new Map([...document.querySelectorAll('.contents a')].map((a) => [a.getAttribute('href')?.slice(1), a]))
  if (entries.size > 0) {
    const headings = [...document.querySelectorAll('main h2, main h3')].filter((h) => entries.has(h.id))
    const mark = () => {
      const passed = headings.filter((h) => h.getBoundingClientRect().top < 120)
      for (const entry of entries.values()) entry.removeAttribute('aria-current')
      const now = entries.get((passed.at(-1) ?? headings[0])?.id)
      now?.setAttribute('aria-current', 'true')
      const list = document.querySelector('.contents')
      if (now instanceof HTMLElement && list && passed.length > 0) list.scrollTop = now.offsetTop - list.clientHeight / 2
    }
    let waiting = false
    addEventListener('scroll', () => {
      if (waiting) return
      waiting = true
      requestAnimationFrame(() => {
        waiting = false
        mark()
      })
    })
    mark()
  }

  // --- search ----------------------------------------------------------------------------------

  const dialog = one('dialog.search', HTMLDialogElement)
  const input = one('dialog.search input', HTMLInputElement)
  const results = one('#results', HTMLUListElement)
  const said = one('.said', HTMLParagraphElement)
  let chosen = -1
  let loading = false

  /** @returns {Page[] | undefined} */
  function pages() {
    return /** @type {{ searchedPages?: Page[] }} */ (/** @type {unknown} */ (window)).searchedPages
  }

  function load() {
    if (pages() || loading) return
    loading = true
    const script = document.createElement('script')
    const address = `${root}search.js`
    // The gateway's policy wants to know who makes the address of a script.
    const policy = /** @type {{ trustedTypes?: { createPolicy(n: string, r: object): { createScriptURL(a: string): string } } }} */ (
      /** @type {unknown} */ (window)
    ).trustedTypes?.createPolicy('docs', { createScriptURL: (/** @type {string} */ own) => own })
    script.src = policy ? policy.createScriptURL(address) : address
    script.addEventListener('load', show)
    script.addEventListener('error', () => {
      loading = false
      said.textContent = 'The index of the search could not be loaded.'
    })
    document.head.append(script)
  }

  /** The words to look for, without those that say nothing, unless there are no others. Plurals are looked for as
   * singulars, which are found in both.
   * @param {string} text */
  function words(text) {
    const all = text.toLowerCase().split(/[\s,;]+/).map((word) => word.replace(/[?!.:]+$/, '')).filter(Boolean)
    const telling = all.filter((word) => !STOP_WORDS.has(word))
    return (telling.length > 0 ? telling : all).map(singular)
  }

  /** @param {string} word */
  const singular = (word) => (/[^su]s$/.test(word) && word.length > 3 ? word.slice(0, -1) : word)

  /** For comparing a title with what was typed: `lease.expired` is found by “lease expired”.
   * @param {string} text */
  const plain = (text) => text.split(/[\s._-]+/).map(singular).join(' ')

  /** How well a text has the word: not at all, somewhere, at the start of a word, or as a whole one, also of several.
   * @param {string} text @param {string} word */
  function fit(text, word) {
    const at = text.indexOf(word)
    if (at < 0) return 0
    for (let from = at; from >= 0; from = text.indexOf(word, from + 1)) {
      if (from === 0 || !/\w/.test(text[from - 1] ?? '')) {
        return /^s?(\W|$)/.test(text.slice(from + word.length, from + word.length + 2)) ? 3 : 2
      }
    }
    return 1
  }

  /** @param {string} query @returns {Hit[]} */
  function find(query) {
    const wanted = words(query)
    /** @type {Hit[]} */
    const hits = []
    if (wanted.length === 0) return hits
    for (const [address, page, section, parts] of pages() ?? []) {
      const inPage = page.toLowerCase()
      for (const [anchor, title, text, isRow] of parts) {
        const [inTitle, inText] = [title.toLowerCase(), text.toLowerCase()]
        // “Retry” is about retrying tasks also where it does not say so.
        const isAbout = !isRow && words(title).every((word) => wanted.includes(word))
        let score = 0
        let hasAll = true
        for (const word of wanted) {
          const best = Math.max(fit(inTitle, word) * 10, fit(inPage, word) * 6, fit(inText, word) * 2)
          hasAll &&= best > 0
          if (!hasAll && !isAbout) {
            score = 0
            break
          }
          score += best
        }
        if (score === 0) continue
        // A section or a command is read first, then the rows of tables: many fields have the name of what they are
        // about. Codes and settings have names of their own, which nobody types by chance.
        const isNamed = !isRow || /[._]/.test(title)
        if (plain(inTitle) === plain(wanted.join(' '))) score += isNamed ? 40 : 10
        if (isAbout || wanted.every((word) => fit(inTitle, word) >= 2)) {
          score += title.startsWith('traceplane ') ? 40 : isRow ? 0 : hasAll ? 20 : 10
        }
        if (anchor === '') score += 4
        if (section === 'Development') score -= 8
        hits.push({ href: `${root}${address}${anchor ? `#${anchor}` : ''}`, title, page: anchor ? page : section, text, score })
      }
    }
    return hits.sort((a, b) => b.score - a.score).slice(0, MOST_RESULTS)
  }

  /** The text around the first of the words, with all of them marked.
   * @param {string} text @param {string[]} wanted */
  function excerpt(text, wanted) {
    const lower = text.toLowerCase()
    const at = Math.max(0, Math.min(...wanted.map((w) => lower.indexOf(w)).filter((p) => p >= 0), text.length))
    const from = at > 60 && at < text.length ? text.lastIndexOf(' ', at - 40) + 1 : 0
    return `${from > 0 ? '… ' : ''}${text.slice(from, from + 160)}${text.length > from + 160 ? ' …' : ''}`
  }

  /** @param {string} text @param {string[]} wanted */
  function marked(text, wanted) {
    const piece = document.createDocumentFragment()
    const escaped = wanted.map((w) => w.replace(/[.*+?^${}()|[\]\\]/g, '\\$&'))
    for (const [index, part] of text.split(new RegExp(`(${escaped.join('|')})`, 'i')).entries()) {
      if (index % 2 === 0) piece.append(part)
      else {
        const mark = document.createElement('mark')
        mark.textContent = part
        piece.append(mark)
      }
    }
    return piece
  }

  function show() {
    const wanted = words(input.value)
    const hits = find(input.value)
    results.replaceChildren(
      ...hits.map((hit, index) => {
        const item = document.createElement('li')
        item.id = `result-${index}`
        item.setAttribute('role', 'option')
        item.setAttribute('aria-selected', 'false')
        item.dataset['href'] = hit.href
        const title = document.createElement('strong')
        title.append(marked(hit.title, wanted))
        const page = document.createElement('span')
        page.className = 'page-name'
        page.textContent = hit.page
        const text = document.createElement('span')
        text.className = 'excerpt'
        text.append(marked(excerpt(hit.text, wanted), wanted))
        item.append(title, page, text)
        item.addEventListener('click', () => visit(item))
        return item
      }),
    )
    input.setAttribute('aria-expanded', String(hits.length > 0))
    said.textContent = !pages() ? 'Loading …' : wanted.length === 0 ? 'Type a word, a command, a setting or an error code.' : hits.length === 0 ? 'Nothing has all of these words.' : ''
    choose(hits.length > 0 ? 0 : -1)
  }

  /** @param {number} index */
  function choose(index) {
    chosen = index
    for (const [at, item] of [...results.children].entries()) {
      item.setAttribute('aria-selected', String(at === index))
      if (at === index) item.scrollIntoView({ block: 'nearest' })
    }
    if (index < 0) input.removeAttribute('aria-activedescendant')
    else input.setAttribute('aria-activedescendant', `result-${index}`)
  }

  /** @param {Element | undefined} item */
  function visit(item) {
    if (!(item instanceof HTMLLIElement)) return
    dialog.close()
    location.href = item.dataset['href'] ?? root
  }

  function open() {
    load()
    if (!dialog.open) dialog.showModal()
    input.select()
    show()
  }

  one('button.finder', HTMLButtonElement).addEventListener('click', open)
  input.addEventListener('input', show)
  dialog.addEventListener('click', (event) => {
    if (event.target === dialog) dialog.close()
  })
  input.addEventListener('keydown', (event) => {
    const count = results.children.length
    if (event.key === 'ArrowDown' && count > 0) choose((chosen + 1) % count)
    else if (event.key === 'ArrowUp' && count > 0) choose((chosen - 1 + count) % count)
    else if (event.key === 'Enter') visit(results.children[chosen])
    else if (event.key === 'Escape') dialog.close()
    else return
    event.preventDefault()
  })
  addEventListener('keydown', (event) => {
    const typing = event.target instanceof HTMLInputElement
    if ((event.key === '/' && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) || (event.key === 'k' && (event.ctrlKey || event.metaKey))) {
      event.preventDefault()
      open()
    }
  })
})()

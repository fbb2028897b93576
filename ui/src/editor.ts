// The SQL editor: CodeMirror in a shadow root, where its styles are sheets made by script, which the page's content
// security policy lets through; in the page itself they would be inline. Loaded when the first editor is shown.
import { acceptCompletion, autocompletion, type Completion, type CompletionContext, type CompletionResult, completionKeymap } from '@codemirror/autocomplete'
import { defaultKeymap, history, historyKeymap } from '@codemirror/commands'
import { PostgreSQL, sql as sqlOf } from '@codemirror/lang-sql'
import { bracketMatching, HighlightStyle, syntaxHighlighting } from '@codemirror/language'
import { EditorState, Prec } from '@codemirror/state'
import { drawSelection, EditorView, keymap, placeholder } from '@codemirror/view'
import { tags } from '@lezer/highlight'

export interface Names {
  datasets: () => string[]
  /** Columns of a dataset, by name and type. */
  columns: (dataset: string) => Promise<{ name: string; type: string }[]>
}

export interface Editor {
  close: () => void
}

const COLOURS = HighlightStyle.define([
  { tag: tags.keyword, color: 'var(--accent)', fontWeight: '600' },
  { tag: [tags.string, tags.special(tags.string)], color: 'var(--good)' },
  { tag: [tags.number, tags.bool, tags.null], color: 'var(--held)' },
  { tag: tags.comment, color: 'var(--muted)', fontStyle: 'italic' },
  { tag: tags.typeName, color: 'var(--pause)' },
])

const LOOK = EditorView.theme({
  '&': { color: 'var(--ink)', minHeight: '190px', maxHeight: '60vh' },
  '&.cm-focused': { outline: 'none' },
  '.cm-scroller': { font: '13.5px/1.6 var(--code)', minHeight: '190px' },
  '.cm-content': { padding: '14px 0', caretColor: 'var(--ink)' },
  '.cm-line': { padding: '0 16px' },
  '.cm-cursor': { borderLeftColor: 'var(--ink)', borderLeftWidth: '2px' },
  '.cm-selectionBackground, &.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground': { background: 'var(--accent-soft)' },
  '.cm-placeholder': { color: 'var(--muted)' },
  '&.cm-focused .cm-matchingBracket': { background: 'var(--accent-soft)', outline: '1px solid var(--accent)' },
  '.cm-tooltip': { background: 'var(--raised)', border: '1px solid var(--line-strong)', borderRadius: '10px', overflow: 'hidden', boxShadow: 'var(--shadow)' },
  '.cm-tooltip.cm-tooltip-autocomplete > ul': { font: '13px/1.5 var(--code)', maxHeight: 'none' },
  '.cm-tooltip-autocomplete > ul > li': { padding: '4px 10px !important' },
  '.cm-tooltip-autocomplete ul li[aria-selected]': { background: 'var(--accent-soft)', color: 'var(--ink)' },
  '.cm-completionMatchedText': { textDecoration: 'none', fontWeight: '700', color: 'var(--accent)' },
  '.cm-completionDetail': { color: 'var(--muted)', fontStyle: 'normal' },
})

const PLAIN = /^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$/
const written = (name: string): string => (PLAIN.test(name) ? name : `"${name.replaceAll('"', '""')}"`)
const SOURCE = /\b(?:from|join)\s+("(?:[^"]|"")+"|[\w.]+)(?:\s+(?:as\s+)?(?!(?:on|using|where|join|left|right|full|inner|cross|group|order|limit|for|union|asof|natural|having|qualify|window)\b)([A-Za-z_]\w*))?/gi

/** Datasets of a text, by what its columns are prefixed with there. */
function named(text: string): Map<string, string> {
  const found = new Map<string, string>()
  for (const [, source = '', alias] of text.matchAll(SOURCE)) {
    const dataset = source.startsWith('"') ? source.slice(1, -1).replaceAll('""', '"') : source
    found.set((alias ?? dataset).toLowerCase(), dataset)
    found.set(dataset.toLowerCase(), dataset)
  }
  return found
}

function completionOf(names: Names) {
  return async (context: CompletionContext): Promise<CompletionResult | null> => {
    const word = context.matchBefore(/["\w.]*/)
    if (!word || (word.from === word.to && !context.explicit)) return null
    const datasets = names.datasets()
    const mentioned = named(context.state.doc.toString())
    const dot = word.text.lastIndexOf('.')
    const owner = dot > 0 ? mentioned.get(word.text.slice(0, dot).replaceAll('"', '').toLowerCase()) : undefined
    if (owner !== undefined && datasets.includes(owner)) {
      const columns = await names.columns(owner)
      if (columns.length) return { from: word.from + dot + 1, options: columns.map(asOption), validFor: /^\w*$/ }
    }
    const known = [...new Set(mentioned.values())].filter((one) => datasets.includes(one))
    const columns = (await Promise.all(known.map(names.columns))).flat()
    const options: Completion[] = [
      ...columns.map(asOption),
      ...datasets.map((one) => ({ label: written(one), type: 'class', detail: 'dataset', boost: -1 })),
    ]
    return { from: word.from, options, validFor: /^["\w.]*$/ }
  }
}

const asOption = ({ name, type }: { name: string; type: string }): Completion => ({ label: written(name), type: 'property', detail: type, boost: 1 })

export function openEditor(host: HTMLElement, text: string, names: Names, changed: (text: string) => void, run: () => void): Editor {
  const root = host.shadowRoot ?? host.attachShadow({ mode: 'open', delegatesFocus: true })
  const dialect = PostgreSQL
  const view = new EditorView({
    root,
    parent: root,
    state: EditorState.create({
      doc: text,
      extensions: [
        Prec.highest(keymap.of([{ key: 'Mod-Enter', run: () => (run(), true) }])),
        history(),
        drawSelection(),
        bracketMatching(),
        sqlOf({ dialect }),
        dialect.language.data.of({ autocomplete: completionOf(names) }),
        autocompletion({ icons: false, maxRenderedOptions: 10 }),
        // Tab goes on to the next field, as everywhere, unless completions are offered.
        keymap.of([{ key: 'Tab', run: acceptCompletion }, ...completionKeymap, ...historyKeymap, ...defaultKeymap]),
        EditorView.lineWrapping,
        placeholder('select *\nfrom shop.sales\nlimit 100'),
        syntaxHighlighting(COLOURS),
        LOOK,
        EditorView.contentAttributes.of({ 'aria-label': 'SQL', autocapitalize: 'off' }),
        EditorView.updateListener.of((update) => {
          if (update.docChanged) changed(update.state.doc.toString())
        }),
      ],
    }),
  })
  return {
    close: () => view.destroy(),
  }
}

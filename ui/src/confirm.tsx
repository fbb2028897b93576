// Questions in the middle of the page: before what cannot be taken back easily, and for what has to be filled in.
// Escape gives up, Enter agrees; the focus stays inside and goes back to where it was.
import type { ComponentChildren } from 'preact'
import { useEffect, useRef, useState } from 'preact/hooks'
import { inWords } from './actions'
import { ApiError } from './api'
import { Button } from './parts'

interface Props {
  title: string
  children: ComponentChildren
  yes: string
  look?: 'primary' | 'danger'
  /** A promise: the dialog stays open until it holds, and says why if it breaks. */
  agree: () => unknown
  close: () => void
}

export function Confirm({ title, children, yes, look = 'primary', agree, close }: Props) {
  const dialog = useRef<HTMLDialogElement>(null)
  const [problem, setProblem] = useState<string>()
  const [busy, setBusy] = useState(false)
  useEffect(() => {
    const shown = dialog.current!
    shown.showModal()
    return () => shown.close()
  }, [])
  const submit = async (event: Event) => {
    event.preventDefault()
    if (busy) return
    setBusy(true)
    try {
      await agree()
      close()
    } catch (error) {
      setProblem(error instanceof ApiError ? inWords(error) : String(error))
      setBusy(false)
    }
  }
  return (
    <dialog ref={dialog} class="overlay confirm" aria-label={title} onCancel={close}>
      <form class="overlay-body" onSubmit={(event) => void submit(event)}>
        <h2>{title}</h2>
        <div class="confirm-text">{children}</div>
        {problem && (
          <p class="problem-line" role="alert">
            {problem}
          </p>
        )}
        <div class="actions">
          <Button look="ghost" onClick={close}>
            Not now
          </Button>
          <Button look={look} type="submit" disabled={busy}>
            {yes}
          </Button>
        </div>
      </form>
    </dialog>
  )
}

/** What a secret value looks like when it is shown once. */
export function Told({ title, children, close }: { title: string; children: ComponentChildren; close: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null)
  useEffect(() => {
    const shown = dialog.current!
    shown.showModal()
    return () => shown.close()
  }, [])
  return (
    <dialog ref={dialog} class="overlay confirm" aria-label={title} onCancel={close}>
      <div class="overlay-body">
        <h2>{title}</h2>
        <div class="confirm-text">{children}</div>
        <div class="actions">
          <Button look="primary" onClick={close}>
            Done
          </Button>
        </div>
      </div>
    </dialog>
  )
}

// A question before what cannot be taken back easily.
import type { ComponentChildren } from 'preact'
import { useEffect, useRef } from 'preact/hooks'
import { Button } from './parts'

interface Props {
  title: string
  children: ComponentChildren
  yes: string
  look?: 'primary' | 'danger'
  agree: () => void
  close: () => void
}

export function Confirm({ title, children, yes, look = 'primary', agree, close }: Props) {
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
          <Button look="ghost" onClick={close}>
            Not now
          </Button>
          <Button look={look} onClick={() => (close(), agree())}>
            {yes}
          </Button>
        </div>
      </div>
    </dialog>
  )
}

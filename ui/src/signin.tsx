// For a browser that nobody has signed in yet.
import { useState } from 'preact/hooks'
import { Button, Copy, sentence } from './parts'
import { agreeToLink, failure, otherLink, stay } from './session'

export function SignIn() {
  const [org, setOrg] = useState('default')
  const problem = failure.value
  const told = problem && problem.code !== 'token.missing' ? problem : undefined
  const next = location.pathname + location.search
  return (
    <main class="sign-in" tabIndex={-1}>
      <div class="card">
        <Mark />
        <h1>Sign in to Traceplane</h1>
        {told && (
          <p class="problem-line" role="alert">
            {sentence(told.message)} {told.nextStep && sentence(told.nextStep)}
          </p>
        )}
        <section>
          <h2>On your own machine</h2>
          <p>In the folder where the platform runs, this prints a link that signs you in:</p>
          <Copy text="traceplane ui" />
        </section>
        <section>
          <h2>With the account of your organization</h2>
          <form action="/auth/login" method="get">
            <label for="org">Organization</label>
            <div class="row">
              <input id="org" name="org" value={org} required maxLength={100} autocomplete="organization"
                onInput={(event) => setOrg(event.currentTarget.value)} />
              <input type="hidden" name="next" value={next} />
              <button type="submit" class="button primary">
                Continue
              </button>
            </div>
          </form>
        </section>
      </div>
    </main>
  )
}

/** A link of another person or organization takes the place of a session only if its reader says so. */
export function OtherLink() {
  const { of, known } = otherLink.value!
  return (
    <main class="sign-in" tabIndex={-1}>
      <div class="card">
        <Mark />
        <h1>Sign in as somebody else?</h1>
        <p>
          This browser is signed in as <strong>{known.name} of {known.org}</strong>. The link that was opened signs it in as <strong>{of}</strong>, in all tabs.
        </p>
        <div class="actions">
          <Button look="primary" onClick={() => void stay()}>Stay {known.name}</Button>
          <Button onClick={() => void agreeToLink()}>Sign in as {of}</Button>
        </div>
      </div>
    </main>
  )
}

export function Mark() {
  return (
    <svg class="mark" viewBox="0 0 32 32" aria-hidden="true">
      <rect width="32" height="32" rx="8" />
      <path class="line" d="M7 10h7a5 5 0 0 1 5 5v2a5 5 0 0 0 5 5h1" />
      <path class="faint" d="M7 22h5" />
      <circle cx="25" cy="22" r="3" />
      <circle cx="7" cy="10" r="2.600" />
    </svg>
  )
}

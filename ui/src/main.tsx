import { render } from 'preact'
import { App } from './app'
import './styles/base.css'
import './styles/parts.css'
import './styles/graph.css'
import './styles/pages.css'

render(<App />, document.getElementById('app')!)

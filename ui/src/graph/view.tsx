// The graph as a drawing that can be moved, enlarged, and walked through with the keyboard.
import { Component, type ComponentChildren } from 'preact'
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks'
import { brief, bytes, counted, nameOfDataset } from '../format'
import { IconIn, type IconName } from '../icons'
import { Button } from '../parts'
import { layOut, type Placed } from './layout'
import { type Change, type DagNode, type Graph, type JobNode, type Node, reachable, SIZE } from './model'

interface Frame {
  x: number
  y: number
  scale: number
}

interface Props {
  graph: Graph
  chosen?: string
  /** Nodes that a search found; undefined: nobody searches. */
  found?: Set<string>
  /** Where two versions are compared. */
  changes?: Map<string, Change>
  choose: (id: string | undefined) => void
  open: (node: Node) => void
}

const SMALLEST = 0.05
const LARGEST = 2.5
/** Smaller than this, one moves along it, large enough to be read, rather than see all of it, unless one asks for that. */
const SMALLEST_WHOLE = 0.5
const READABLE = 0.8
const EDGE = 40
/** A graph of more nodes is wide and high anyway, and goes from left to right. */
const MOST_TURNED = 60
const STILL_MS = 200

export function GraphView({ graph, chosen, found, changes, choose, open }: Props) {
  const box = useRef<HTMLDivElement>(null)
  const [frame, setFrame] = useState<Frame>({ x: EDGE, y: EDGE, scale: 1 })
  const [focused, setFocused] = useState<string>()
  // Places depend on what there is, not on what goes on in it.
  const shape = `${graph.nodes.map((node) => node.id).join('\n')}\n\n${graph.edges.map((edge) => `${edge.from}>${edge.to}`).join('\n')}`
  const [way, setWay] = useState<'right' | 'down'>() // undefined: not known yet, so nothing is shown of it
  const goesDown = way === 'down'
  const moved = useRef(false) // by somebody: then nothing else moves it
  const sizes = graph.nodes.map((node) => ({ id: node.id, ...SIZE[node.kind] }))
  const placed = useMemo(() => layOut(sizes, graph.edges, goesDown), [shape, goesDown])
  const scaleOf = (one: Placed) => {
    const { width, height } = box.current!.getBoundingClientRect()
    return Math.min(1.15, (width - EDGE * 2) / one.width, (height - EDGE * 2) / one.height)
  }
  // A chain is small in a window that is not much wider than high, unless it goes down.
  useLayoutEffect(() => {
    if (way && moved.current) return // somebody looks at a part of it
    const scaled = (down: boolean) => scaleOf(layOut(sizes, graph.edges, down))
    setWay(sizes.length <= MOST_TURNED && scaled(true) > scaled(false) * 1.2 ? 'down' : 'right')
  }, [shape])
  const isWhole = useRef(false) // somebody asked to see all of it, readable or not
  const fit = () => {
    if (!box.current) return // the page was left meanwhile
    const { width, height } = box.current.getBoundingClientRect()
    const scale = scaleOf(placed)
    const used = isWhole.current ? Math.max(SMALLEST, scale) : scale < SMALLEST_WHOLE ? READABLE : scale
    const middle = { x: (width - placed.width * used) / 2, y: (height - placed.height * used) / 2 }
    setFrame({ scale: used, x: goesDown ? middle.x : Math.max(EDGE, middle.x), y: goesDown ? Math.max(EDGE, middle.y) : middle.y })
  }
  useEffect(() => {
    if (way && !moved.current) fit()
  }, [placed, way])
  useEffect(() => {
    const seen = new ResizeObserver(() => way && !moved.current && fit())
    seen.observe(box.current!)
    return () => seen.disconnect()
  }, [placed, way])

  const [isMoving, setMoving] = useState(false)
  const still = useRef<ReturnType<typeof setTimeout> | undefined>(undefined)
  const move = (change: (before: Frame) => Frame) => {
    moved.current = true
    setFrame(change)
    // What moves is a picture of the graph; it is drawn sharply when it stands still.
    setMoving(true)
    clearTimeout(still.current)
    still.current = setTimeout(() => setMoving(false), STILL_MS)
  }
  useEffect(() => () => clearTimeout(still.current), [])
  const zoom = (factor: number, at?: { x: number; y: number }) =>
    move((before) => {
      if (!box.current) return before
      const { width, height } = box.current.getBoundingClientRect()
      const middle = at ?? { x: width / 2, y: height / 2 }
      const scale = Math.min(LARGEST, Math.max(SMALLEST, before.scale * factor))
      const by = scale / before.scale
      return { scale, x: middle.x - (middle.x - before.x) * by, y: middle.y - (middle.y - before.y) * by }
    })
  const fitAgain = () => {
    moved.current = false
    isWhole.current = true
    fit()
  }
  useMoves(box, move, zoom, () => choose(undefined))

  const show = (id: string) => {
    const at = placed.nodes.get(id)
    if (!at || !box.current) return
    const { width, height } = box.current.getBoundingClientRect()
    setFrame((before) => {
      const scale = Math.max(before.scale, 0.7)
      const inside = (value: number, most: number, size: number) => value > 0 && value < most - size * scale
      const x = at.x * scale + before.x
      const y = at.y * scale + before.y
      if (scale === before.scale && inside(x, width, SIZE.dag.width) && inside(y, height, SIZE.dag.height)) return before
      moved.current = true
      return { scale, x: width / 2 - (at.x + SIZE.dag.width / 2) * scale, y: height / 2 - (at.y + SIZE.dag.height / 2) * scale }
    })
  }
  useEffect(() => {
    if (chosen && way) show(chosen)
  }, [chosen, placed, way])

  const up = useMemo(() => (chosen ? reachable(graph, chosen, 'up') : undefined), [shape, chosen])
  const down = useMemo(() => (chosen ? reachable(graph, chosen, 'down') : undefined), [shape, chosen])
  const isFar = (id: string) => {
    if (found) return !found.has(id)
    return chosen !== undefined && id !== chosen && !up!.has(id) && !down!.has(id)
  }
  const byId = useMemo(() => new Map(graph.nodes.map((node) => [node.id, node])), [graph])
  const walk = (event: KeyboardEvent, id: string) => {
    const next = neighbour(event.key, id, placed.nodes)
    if (next === undefined) return
    event.preventDefault()
    box.current!.querySelector<SVGGElement>(`[data-node="${CSS.escape(next)}"]`)?.focus()
    show(next)
  }
  const first = focused !== undefined && byId.has(focused) ? focused : graph.nodes[0]?.id
  const latest = useRef({ choose, open, walk, byId })
  latest.current = { choose, open, walk, byId }
  // Moving and enlarging draws none of it anew, and news only the nodes and edges that look different.
  const drawn = useMemo(
    () => (
      <>
        {graph.edges.map((edge, n) => {
          const points = placed.edges[n]!
          const target = byId.get(edge.to)!
          const queue = edge.role === 'feeds' && target.kind === 'job' ? queueOf(target) : undefined
          const path = curve(points, goesDown)
          const look = `edge edge-${edge.role} ${isFar(edge.from) || isFar(edge.to) ? 'far' : chosen !== undefined && !found ? 'near' : ''} ${target.state === 'running' ? 'flows' : ''}`
          return (
            <Same key={`${edge.from}>${edge.to}`} as={[look, path, queue?.said, queue?.look]}>
              {() => (
                <g class={look} aria-hidden="true">
                  <path d={path} />
                  {queue && <QueueBar queue={queue} at={points.at(-1)!} above={goesDown} />}
                </g>
              )}
            </Same>
          )
        })}
        {graph.nodes.map((node) => {
          const at = placed.nodes.get(node.id)
          if (!at) return null
          const change = changes?.get(node.id)
          const texts = written(node, change, changes !== undefined)
          const place = `translate(${at.x} ${at.y})`
          const label = `${spoken(node)}${change ? `, ${SAID_OF_CHANGE[change]}` : ''}`
          const look = `node node-${node.kind} is-${node.state} ${node.id === chosen ? 'chosen' : ''} ${isFar(node.id) ? 'far' : ''} ${changes ? `change-${change ?? 'none'}` : ''}`
          const reached = node.id === first ? 0 : -1
          return (
            <Same key={node.id} as={[look, place, label, reached, texts.detail, texts.said]}>
              {() => (
                <g data-node={node.id} transform={place} tabindex={reached} role="button" aria-pressed={node.id === chosen} aria-label={label} class={look}
                  onFocus={() => setFocused(node.id)} onClick={() => latest.current.choose(node.id)}
                  onDblClick={() => latest.current.open(latest.current.byId.get(node.id) ?? node)}
                  onKeyDown={(event) => {
                    if (event.key === 'Enter' || event.key === ' ') {
                      event.preventDefault()
                      latest.current.choose(node.id)
                    } else latest.current.walk(event, node.id)
                  }}>
                  <Card node={node} texts={texts} />
                </g>
              )}
            </Same>
          )
        })}
      </>
    ),
    [graph, placed, chosen, found, changes, first],
  )
  const far = frame.scale < 0.2 ? 'far-away farthest' : frame.scale < 0.45 ? 'far-away' : ''
  return (
    <div class="graph" onKeyDown={(event) => event.key === 'Escape' && choose(undefined)}>
      <div ref={box} class={`graph-box ${far}`} role="group" aria-label="Graph of jobs and datasets" data-ground
        style={{ backgroundPosition: `${frame.x}px ${frame.y}px` }}>
        <svg class={isMoving ? 'drawing moving' : 'drawing'} width={placed.width} height={placed.height} data-ground
          style={{ transform: `translate(${frame.x}px, ${frame.y}px) scale(${frame.scale})` }}>
          {way && drawn}
        </svg>
      </div>
      <div class="graph-tools" role="group" aria-label="Zoom">
        <Button icon="plus" data-keys="+ =" onClick={() => zoom(1.25)} aria-label="Larger" title="Larger (+)" />
        <Button icon="less" data-keys="-" onClick={() => zoom(0.8)} aria-label="Smaller" title="Smaller (−)" />
        <Button icon="fit" data-keys="0" onClick={fitAgain} aria-label="Show all of it" title="Show all of it (0)" />
      </div>
    </div>
  )
}

/** What it draws stays until it would look different. */
class Same extends Component<{ as: readonly unknown[]; children: () => ComponentChildren }> {
  shouldComponentUpdate(next: { as: readonly unknown[] }): boolean {
    return next.as.some((value, n) => value !== this.props.as[n])
  }

  render() {
    return this.props.children()
  }
}

type Zoom = (factor: number, at?: { x: number; y: number }) => void

/** Moving with the pointer, with two fingers or the wheel. */
function useMoves(
  box: { current: HTMLElement | null },
  setFrame: (change: (before: Frame) => Frame) => void,
  zoom: Zoom,
  clickedGround: () => void,
): void {
  const latest = useRef({ zoom, clickedGround })
  latest.current = { zoom, clickedGround }
  useEffect(() => {
    const ground = box.current!
    const held = new Map<number, { x: number; y: number }>()
    let moved = 0
    const at = (event: MouseEvent) => {
      const { left, top } = ground.getBoundingClientRect()
      return { x: event.clientX - left, y: event.clientY - top }
    }
    const onWheel = (event: WheelEvent) => {
      event.preventDefault()
      if (event.ctrlKey || event.deltaMode !== 0 || Math.abs(event.deltaX) < 1)
        latest.current.zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0018)), at(event))
      else setFrame((before) => ({ ...before, x: before.x - event.deltaX, y: before.y - event.deltaY }))
    }
    const onDown = (event: PointerEvent) => {
      if (event.button !== 0) return
      held.set(event.pointerId, at(event))
      moved = 0
    }
    const onMove = (event: PointerEvent) => {
      const last = held.get(event.pointerId)
      if (!last) return
      const next = at(event)
      const [by, other] = [{ x: next.x - last.x, y: next.y - last.y }, [...held].find(([id]) => id !== event.pointerId)?.[1]]
      moved += Math.abs(by.x) + Math.abs(by.y)
      if (moved > 4 && !ground.hasPointerCapture(event.pointerId)) ground.setPointerCapture(event.pointerId)
      held.set(event.pointerId, next)
      if (other) {
        const [before, after] = [Math.hypot(last.x - other.x, last.y - other.y), Math.hypot(next.x - other.x, next.y - other.y)]
        if (before > 0) latest.current.zoom(after / before, { x: (next.x + other.x) / 2, y: (next.y + other.y) / 2 })
      } else if (moved > 4) setFrame((before) => ({ ...before, x: before.x + by.x, y: before.y + by.y }))
    }
    const onUp = (event: PointerEvent) => {
      if (held.delete(event.pointerId) && moved <= 4 && (event.target as Element).hasAttribute('data-ground')) latest.current.clickedGround()
    }
    ground.addEventListener('wheel', onWheel, { passive: false })
    ground.addEventListener('pointerdown', onDown)
    ground.addEventListener('pointermove', onMove)
    ground.addEventListener('pointerup', onUp)
    ground.addEventListener('pointercancel', onUp)
    return () => {
      ground.removeEventListener('wheel', onWheel)
      ground.removeEventListener('pointerdown', onDown)
      ground.removeEventListener('pointermove', onMove)
      ground.removeEventListener('pointerup', onUp)
      ground.removeEventListener('pointercancel', onUp)
    }
  }, [])
}

const WAYS: Record<string, [number, number]> = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }

/** The nearest node in the direction of an arrow key. */
function neighbour(key: string, id: string, places: Map<string, { x: number; y: number }>): string | undefined {
  const way = WAYS[key]
  const here = places.get(id)
  if (!way || !here) return undefined
  let best: { id: string; cost: number } | undefined
  for (const [other, at] of places) {
    const along = (at.x - here.x) * way[0] + (at.y - here.y) * way[1]
    if (along < 4) continue
    const aside = Math.abs((at.x - here.x) * way[1]) + Math.abs((at.y - here.y) * way[0])
    const cost = along + aside * 2.5
    if (!best || cost < best.cost) best = { id: other, cost }
  }
  return best?.id
}

// Edges ----------------------------------------------------------------------------------------------

function curve(points: { x: number; y: number }[], goesDown: boolean): string {
  let path = ''
  points.forEach((point, n) => {
    const last = points[n - 1]
    if (!last) path = `M${point.x} ${point.y}`
    else {
      const [x, y] = goesDown ? [0, (point.y - last.y) / 2] : [(point.x - last.x) / 2, 0]
      path += `C${last.x + x} ${last.y + y} ${point.x - x} ${point.y - y} ${point.x} ${point.y}`
    }
  })
  return path
}

const BAR = 54

interface Queue {
  part: number
  said: string
  told: string
  look: string
}

/** How long the queue in front of a job is: full at the limit that holds its producers. */
function queueOf({ job, waiting }: JobNode): Queue | undefined {
  if (!waiting) return undefined
  const limit = job.max_queue_depth
  const isFull = limit !== undefined && waiting >= limit
  return {
    part: limit ? Math.min(1, waiting / limit) : Math.min(1, Math.log10(1 + waiting) / 4),
    said: `${brief(waiting)}${limit ? ` / ${brief(limit)}` : ''}`,
    told: `${counted(waiting, 'task')} waiting${limit ? `; from ${limit} on, what feeds the job is held` : ''}`,
    look: `queue ${isFull ? 'full' : ''} ${job.hold !== undefined ? 'held' : ''}`,
  }
}

/** In front of a job: on its left, or above it. */
function QueueBar({ queue, at, above }: { queue: Queue; at: { x: number; y: number }; above: boolean }) {
  const [x, y] = above ? [at.x - BAR / 2, at.y - 22] : [at.x - BAR - 14, at.y - 5]
  return (
    <g class={queue.look} transform={`translate(${x} ${y})`}>
      <title>{queue.told}</title>
      <rect class="queue-ground" width={BAR} height={10} rx={5} />
      <rect class="queue-part" width={Math.max(6, BAR * queue.part)} height={10} rx={5} />
      <text x={BAR / 2} y={-4} text-anchor="middle">{queue.said}</text>
    </g>
  )
}

// Nodes ----------------------------------------------------------------------------------------------

const MARKS: Record<string, IconName> = { running: 'running', dead: 'cross', held: 'held', paused: 'pause', queued: 'queued' }

export const SAID_OF_CHANGE: Record<Change, string> = {
  added: 'added',
  breaking: 'breaking change',
  rebuilt: 'computed anew',
  in_place: 'changed in place',
  removed: 'removed',
}

interface Texts {
  detail: string
  said: string
}

/** What a node says of itself beside its name. */
function written(node: Node, change: Change | undefined, compared: boolean): Texts {
  const difference = change ? SAID_OF_CHANGE[change] : 'unchanged'
  return {
    detail: cut(compared && node.kind === 'dataset' ? difference : detail(node), 27),
    said: node.kind === 'dataset' ? '' : cut(node.kind === 'dag' ? sum(node) : compared ? difference : saying(node), 27),
  }
}

const sum = (node: DagNode): string =>
  node.dead ? counted(node.dead, 'dead task') : node.running || node.waiting ? `${brief(node.running)} running · ${brief(node.waiting)} waiting` : 'idle'

function Card({ node, texts }: { node: Node; texts: Texts }) {
  const { width, height } = SIZE[node.kind]
  const icon: IconName = node.kind === 'dataset' ? 'dataset' : node.kind === 'dag' ? 'graph' : node.job.activation === 'source' ? 'source' : 'job'
  const mark = MARKS[node.state]
  const room = node.kind === 'dataset' ? 17 : 18
  return (
    <>
      <title>{`${node.dag} · ${node.name}`}</title>
      <rect class="card" width={width} height={height} rx={node.kind === 'dataset' ? 24 : 10} />
      {node.kind === 'job' && <rect class="stripe" width={4} height={height - 20} y={10} rx={2} />}
      <IconIn name={icon} x={14} y={node.kind === 'job' ? 12 : node.kind === 'dag' ? 13 : 16} />
      <text class="name" x={38} y={node.kind === 'dataset' ? 21 : 25}>
        {cut(node.kind === 'dataset' ? nameOfDataset(node.name) : node.name, room)}
      </text>
      <text class="detail" x={38} y={node.kind === 'dataset' ? 36 : 43}>
        {texts.detail}
      </text>
      {texts.said && (
        <text class={`said said-${node.state}`} x={38} y={node.kind === 'dag' ? 62 : 58}>
          {texts.said}
        </text>
      )}
      {mark && (
        <g class={`badge badge-${node.state}`} transform={`translate(${width - 20} ${node.kind === 'dataset' ? 24 : 21})`}>
          <circle r={10} />
          <IconIn name={mark} x={-7} y={-7} size={14} />
        </g>
      )}
    </>
  )
}

/** In the font of the drawing, so many letters fit. */
function cut(text: string, most: number): string {
  return text.length <= most ? text : `${text.slice(0, most - 1)}…`
}

function detail(node: Node): string {
  switch (node.kind) {
    case 'job':
      return node.job.source_kind ? `${node.job.source_kind} source` : `${node.job.operator} · ${node.job.runtime}`
    case 'dag':
      return `${counted(node.jobs, 'job')}, ${counted(node.datasets, 'dataset')}`
    case 'dataset': {
      if (node.dataset.storage === 'virtual') return 'virtual'
      const view = node.view
      if (!view) return node.dataset.storage
      const rate = node.rate ? ` · ${node.rate < 10 ? node.rate.toFixed(1) : brief(Math.round(node.rate))}/s` : ''
      if (view.events !== undefined) return `${counted(view.events, 'event')}${rate}`
      return `${view.at_most ? '≤ ' : ''}${brief(view.rows)} rows${rate || ` · ${bytes(view.bytes)}`}`
    }
  }
}

export function saying(node: JobNode): string {
  const parts: string[] = []
  if (node.state === 'paused') parts.push('paused')
  if (node.dead) parts.push(counted(node.dead, 'dead task'))
  if (node.job.hold && node.state !== 'paused') parts.push(node.job.hold.level === 1 ? 'backfill held' : 'held')
  if (node.running) parts.push(`${brief(node.running)} running`)
  if (node.waiting && parts.length < 2) parts.push(`${brief(node.waiting)} waiting`)
  return parts.slice(0, 2).join(' · ') || 'idle'
}

function spoken(node: Node): string {
  const kind = { job: 'Job', dataset: 'Dataset', dag: 'DAG' }[node.kind]
  const more = node.kind === 'job' ? saying(node) : node.kind === 'dag' ? '' : detail(node)
  return `${kind} ${node.name}${node.kind === 'dag' ? '' : ` of ${node.dag}`}${more ? `: ${more}` : ''}`
}

// Places for the nodes of a directed graph, in layers from left to right, or from top to bottom.
//
// Edges against the flow are turned round for the layout; a node's layer is one behind the last of what feeds it; edges
// over several layers get places to bend in each; the order within layers is improved by the mean of the neighbours, to
// and fro, which leaves few crossings; then nodes move towards their neighbours as far as their order lets them.

export interface LayoutNode {
  id: string
  width: number
  height: number
}

export interface LayoutEdge {
  from: string
  to: string
}

export interface Placed {
  nodes: Map<string, { x: number; y: number }>
  /** For each edge the points that it passes, from the end of one node to the beginning of another. */
  edges: { x: number; y: number }[][]
  width: number
  height: number
}

interface Place {
  id?: string
  layer: number
  width: number
  height: number
  y: number
  order: number
  before: Place[]
  behind: Place[]
}

const BETWEEN_LAYERS = 92
const BETWEEN_ROWS = 54
const BETWEEN_NODES = 22
const BEND_HEIGHT = 8
const SWEEPS = 12

export function layOut(nodes: LayoutNode[], edges: LayoutEdge[], goesDown = false): Placed {
  return goesDown ? transposed(fromLeft(nodes.map(sideways), edges, BETWEEN_ROWS)) : fromLeft(nodes, edges, BETWEEN_LAYERS)
}

const sideways = (node: LayoutNode): LayoutNode => ({ ...node, width: node.height, height: node.width })

function transposed({ nodes, edges, width, height }: Placed): Placed {
  const swap = ({ x, y }: { x: number; y: number }) => ({ x: y, y: x })
  return {
    nodes: new Map([...nodes].map(([id, at]) => [id, swap(at)])),
    edges: edges.map((points) => points.map(swap)),
    width: height,
    height: width,
  }
}

function fromLeft(nodes: LayoutNode[], edges: LayoutEdge[], between: number): Placed {
  const places = new Map<string, Place>(
    nodes.map((node) => [node.id, { ...node, layer: 0, y: 0, order: 0, before: [], behind: [] }]),
  )
  const flow = edges.map((edge) => ({ from: places.get(edge.from)!, to: places.get(edge.to)!, turned: false }))
  turnRound(flow, [...places.values()])
  assignLayers(flow, [...places.values()])
  const bends = flow.map(insertBends)
  const layers: Place[][] = []
  const all = [...places.values(), ...bends.flat()]
  for (const place of all) (layers[place.layer] ??= []).push(place)
  for (const layer of layers) layer.forEach((place, order) => (place.order = order))
  reduceCrossings(layers)
  assignRows(layers)

  const lefts: number[] = []
  let x = 0
  for (const layer of layers) {
    lefts.push(x)
    x += Math.max(...layer.map((place) => place.width)) + between
  }
  const top = Math.min(...all.map((place) => place.y - place.height / 2), 0)
  const result: Placed = { nodes: new Map(), edges: [], width: Math.max(0, x - between), height: 0 }
  for (const place of all) {
    place.y -= top
    result.height = Math.max(result.height, place.y + place.height / 2)
    if (place.id !== undefined) result.nodes.set(place.id, { x: lefts[place.layer]!, y: place.y - place.height / 2 })
  }
  result.edges = flow.map(({ from, to, turned }, n) => {
    const points = [
      { x: lefts[from.layer]! + from.width, y: from.y },
      ...bends[n]!.map((bend) => ({ x: lefts[bend.layer]!, y: bend.y })),
      { x: lefts[to.layer]!, y: to.y },
    ]
    return turned ? points.reverse() : points
  })
  return result
}

interface Flow {
  from: Place
  to: Place
  turned: boolean
}

/** Makes the graph acyclic: an edge back to where a walk came from is turned round. */
function turnRound(flow: Flow[], places: Place[]): void {
  const leaving = new Map<Place, Flow[]>()
  for (const edge of flow) {
    const others = leaving.get(edge.from)
    if (others) others.push(edge)
    else leaving.set(edge.from, [edge])
  }
  const done = new Set<Place>()
  const onTheWay = new Set<Place>()
  for (const start of places) {
    if (done.has(start)) continue
    const walk: { place: Place; next: number }[] = [{ place: start, next: 0 }]
    onTheWay.add(start)
    while (walk.length) {
      const step = walk.at(-1)!
      const edge = leaving.get(step.place)?.[step.next++]
      if (!edge) {
        walk.pop()
        onTheWay.delete(step.place)
        done.add(step.place)
      } else if (onTheWay.has(edge.to)) {
        edge.turned = true
      } else if (!done.has(edge.to)) {
        onTheWay.add(edge.to)
        walk.push({ place: edge.to, next: 0 })
      }
    }
  }
  for (const edge of flow) if (edge.turned) [edge.from, edge.to] = [edge.to, edge.from]
}

function assignLayers(flow: Flow[], places: Place[]): void {
  const waiting = new Map<Place, number>(places.map((place) => [place, 0]))
  const leaving = new Map<Place, Place[]>(places.map((place) => [place, []]))
  for (const { from, to } of flow) {
    if (from === to) continue
    waiting.set(to, waiting.get(to)! + 1)
    leaving.get(from)!.push(to)
  }
  const ready = places.filter((place) => waiting.get(place) === 0)
  const order: Place[] = []
  for (let place = ready.shift(); place; place = ready.shift()) {
    order.push(place)
    for (const next of leaving.get(place)!) {
      next.layer = Math.max(next.layer, place.layer + 1)
      waiting.set(next, waiting.get(next)! - 1)
      if (waiting.get(next) === 0) ready.push(next)
    }
  }
  // What nothing feeds stands beside what it feeds, not far on the left.
  const fed = new Set(flow.map(({ to }) => to))
  for (const place of order.reverse()) {
    const next = leaving.get(place)!
    if (next.length && !fed.has(place)) place.layer = Math.min(...next.map((one) => one.layer)) - 1
  }
}

function insertBends({ from, to }: Flow): Place[] {
  const bends: Place[] = []
  let last = from
  for (let layer = from.layer + 1; layer < to.layer; layer++) {
    const bend: Place = { layer, width: 0, height: BEND_HEIGHT, y: 0, order: 0, before: [], behind: [] }
    bends.push(bend)
    connect(last, bend)
    last = bend
  }
  connect(last, to)
  return bends
}

function connect(from: Place, to: Place): void {
  from.behind.push(to)
  to.before.push(from)
}

function reduceCrossings(layers: Place[][]): void {
  const mean = (places: Place[], fallback: number) =>
    places.length ? places.reduce((sum, place) => sum + place.order, 0) / places.length : fallback
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    const forth = sweep % 2 === 0
    for (const layer of forth ? layers : [...layers].reverse()) {
      const wish = new Map(layer.map((place) => [place, mean(forth ? place.before : place.behind, place.order)]))
      layer.sort((a, b) => wish.get(a)! - wish.get(b)! || a.order - b.order)
      layer.forEach((place, order) => (place.order = order))
    }
  }
}

const apart = (upper: Place, lower: Place) => (upper.height + lower.height) / 2 + BETWEEN_NODES

function assignRows(layers: Place[][]): void {
  for (const layer of layers) {
    let y = 0
    layer.forEach((place, n) => {
      if (n > 0) y += apart(layer[n - 1]!, place)
      place.y = y
    })
    const middle = y / 2
    for (const place of layer) place.y -= middle
  }
  for (let sweep = 0; sweep < SWEEPS * 2; sweep++) {
    const forth = sweep % 2 === 0
    for (const layer of forth ? layers : [...layers].reverse()) {
      const wishes = layer.map((place) => {
        const near = forth ? place.before : place.behind
        return near.length ? near.reduce((sum, one) => sum + one.y, 0) / near.length : place.y
      })
      settle(layer, wishes)
    }
  }
}

/** Every node as near to its wish as its neighbours let it: groups that touch take the mean of their wishes. */
function settle(layer: Place[], wishes: number[]): void {
  const groups: { first: number; last: number; at: number; weight: number }[] = []
  // Distances from the first place of the layer, if all touch.
  const offsets = [0]
  for (let n = 1; n < layer.length; n++) offsets.push(offsets[n - 1]! + apart(layer[n - 1]!, layer[n]!))
  layer.forEach((_, n) => {
    let group = { first: n, last: n, at: wishes[n]! - offsets[n]!, weight: 1 }
    for (let upper = groups.at(-1); upper && upper.at > group.at; upper = groups.at(-1)) {
      groups.pop()
      const weight = upper.weight + group.weight
      group = { first: upper.first, last: group.last, at: (upper.at * upper.weight + group.at * group.weight) / weight, weight }
    }
    groups.push(group)
  })
  for (const { first, last, at } of groups) for (let n = first; n <= last; n++) layer[n]!.y = at + offsets[n]!
}

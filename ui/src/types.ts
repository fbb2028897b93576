// The answers of the public API, as far as pages use them. tests/unit/test_ui_types.py compares them with the OpenAPI
// document of the gateway.

export interface WhoAmI {
  org: string
  name: string
  kind: string
  role?: string
  roles: string[]
  sees_pii: boolean
  next_step?: string
}

export interface GraphRead {
  dataset: string
  role?: 'feeds' | 'triggers' | 'reads'
}

export interface HoldView {
  level: number
  job?: string
  metric?: string
  figure?: number
  threshold?: number
}

export interface GraphPause {
  paused_by: string
  reason?: string
}

export interface GraphJob {
  dag: string
  job: string
  version: number
  runtime: string
  operator: string
  activation: string
  source_kind?: string
  reads?: GraphRead[]
  writes?: string[]
  max_concurrency?: number
  max_queue_depth?: number
  max_queue_age_seconds?: number
  generated_for?: string
  hold?: HoldView
  pause?: GraphPause
  change?: 'added' | 'rebuilt' | 'in_place'
}

export interface GraphDataset {
  dataset: string
  dag: string
  storage: string
  reads?: string[]
}

export interface GraphResponse {
  jobs: GraphJob[]
  datasets: GraphDataset[]
}

export interface DagOverview {
  dag: string
  version: number
  jobs: number
  datasets?: string[]
  reads?: string[]
}

export interface OverviewResponse {
  dags: DagOverview[]
}

export interface CoverageView {
  first?: number
  last?: number
  gap_count?: number
  gaps?: [number, number][]
  dead?: number
  first_name?: string
  last_name?: string
  gap_names?: [string, string][]
}

export interface FailedCheckView {
  check: string
  scopes: number
  problem: string
  task_id?: string
}

export interface DatasetView {
  dataset: string
  commits: number
  rows: number
  bytes: number
  cursor?: number
  coverage?: CoverageView
  storage?: string
  at_most?: boolean
  events?: number
  cursor_name?: string
  dead_letters?: number
  failed_checks?: FailedCheckView[]
}

export interface FailureView {
  dag: string
  job: string
  state: 'dead' | 'retrying'
  tasks: number
  code: string
  message: string
  newest: string
  scope?: string
  and_more?: boolean
}

export interface StuckView {
  dag: string
  job: string
  reason: string
  sentence: string
}

export interface StatusResponse {
  counts: Record<string, Record<string, number>>
  datasets: DatasetView[]
  outbox_lag_seconds: number
  failed?: FailureView[]
  stuck?: StuckView[]
  dead_superseded?: number
  dead_retired?: number
  cron?: CronView[]
  dead_messages?: Record<string, number>
}

export interface TaskView {
  task_id: string
  dag: string
  job: string
  state: string
  kind: string
  attempt: number
  max_attempts: number
  created_at: string
  scope?: string
  priority?: string
  worker_id?: string
  started_at?: string
  finished_at?: string
  cancel_requested?: boolean
  progress?: Record<string, unknown>
  error?: Record<string, unknown>
  standing?: string
}

export interface TasksResponse {
  tasks: TaskView[]
}

export interface LineageView {
  event_id: number
  dataset: string
  kind: string
  scope: string
  producer_id: string
}

export interface EventView {
  event_id: number
  dataset: string
  kind: string
  scope: string
  created_at: string
  backfill?: boolean
  emission?: string
  task_id?: string
  dag?: string
  job?: string
  serving?: boolean
}

export interface EventList {
  events: EventView[]
  before?: number
  more?: boolean
}

export interface EffectCommit {
  commit_id: number
  dataset: string
  scope: string
  rows: number
  bytes: number
  committed_at: string
}

export interface EffectTask {
  task_id: string
  dag: string
  job: string
  state: string
  kind: string
  attempt: number
  max_attempts: number
  created_at: string
  scope?: string
  started_at?: string
  finished_at?: string
  commits?: EffectCommit[]
  more_commits?: boolean
}

export interface Effect {
  parent?: number
  event?: EventView
  task?: EffectTask
  left_out?: number
  next?: string
  shown_at?: number
}

export interface EffectsResponse {
  effects: Effect[]
}

export interface WholeReadView {
  dataset: string
  commit_id?: number
  committed_at?: string
  newer?: number
}

export interface AttemptView {
  attempt: number
  outcome: 'running' | 'completed' | 'failed' | 'lost' | 'returned' | 'canceled'
  started_at: string
  ended_at?: string
  worker_id?: string
  code?: string
}

export interface TaskDetail {
  task: TaskView
  inputs: LineageView[]
  outputs: LineageView[]
  reads?: WholeReadView[]
  attempts?: AttemptView[]
}

export interface ReasonView {
  code: string
  sentence: string
}

export interface AttemptLog {
  attempt: number
  text: string
  written_at: string
}

export interface TaskLogs {
  task_id: string
  state: string
  attempt: number
  attempts: AttemptLog[]
}

export interface ExplainResponse {
  task_id: string
  state: string
  job: string
  reasons: ReasonView[]
  dag?: string
  scope?: string
  error?: Record<string, unknown>
  log?: AttemptLog
  next_step?: string
  retry_helps?: boolean
}

export interface TaskChanges {
  changed: Record<string, string>
  unchanged: string[]
  why_unchanged?: Record<string, string>
}

export interface CatalogEntry {
  dataset: string
  dag: string
  storage: string
  rows: number
  bytes: number
  commits: number
  version?: number
  cursor?: number
  coverage?: CoverageView
  description?: string
  at_most?: boolean
  events?: number
  cursor_name?: string
}

export interface CatalogResponse {
  datasets: CatalogEntry[]
  after?: string
}

export interface ColumnView {
  name: string
  type: string
  nullable: boolean
  pii?: boolean
  derived_from?: string[]
  declassified?: string
}

export interface CronView {
  dag: string
  job: string
  schedule: string
  time_zone: string
  next_tick?: string
  last_tick?: string
  paused?: boolean
}

export interface DatasetDetail {
  dataset: CatalogEntry
  columns: ColumnView[]
  position?: string
  produced_by?: string[]
  read_by?: string[]
  sql?: string
  cron?: CronView
  read_roles?: string[]
  write_roles?: string[]
}

export interface StripCell {
  present?: number
  waiting?: number
  running?: number
  dead?: number
}

export interface CoverageStrip {
  dataset: string
  cells: StripCell[]
  first?: number
  last?: number
  per_cell?: number
  names?: string[]
  tasks_left_out?: boolean
}

export interface ScopeExplanation {
  dataset: string
  first: number
  last: number
  reasons: ReasonView[]
  scope?: string
  missing_scopes?: string[]
}

export interface BackfillResponse {
  dataset: string
  job: string
  scopes: number
  created: number
  unfinished: number
  missing: number
  failed: number
  left_out?: number
}

export interface LackingView {
  dataset: string
  first: number
  last: number
  scope?: string
}

export interface BuildView {
  dataset: string
  built: number
  serving: number
}

export interface SourceBehindView {
  job: string
  dataset: string
  position: number
}

export interface VersionView {
  version: number
  state: 'building' | 'active' | 'retired' | 'aborted' | 'collected'
  created_at: string
  activated_at?: string
  manual_cutover?: boolean
  datasets?: BuildView[]
  replays?: number
  unfinished?: number
  dead?: number
  sources_behind?: number
  lacking?: LackingView[]
  behind?: SourceBehindView[]
}

export interface VersionsResponse {
  dag: string
  versions: VersionView[]
}

export interface MovedResponse {
  dag: string
  version: number
  before?: number
  lacking?: LackingView[]
}

export interface AlertView {
  alert_id: string
  dag: string
  alert: string
  state: 'open' | 'suppressed' | 'retracted' | 'acknowledged'
  severity: string
  title: string
  found_at: string
  event_time?: string
  dataset?: string
  subject?: Record<string, unknown>
  fields?: Record<string, unknown>
  position?: string
  suppressed?: string
  owner?: string
  channels?: string[]
  retracted_at?: string
  acknowledged_at?: string
  acknowledged_by?: string
  hides_personal_data?: boolean
}

export interface AlertsResponse {
  alerts: AlertView[]
  after?: string
}

export interface AlertMessageView {
  delivery_id: string
  channel: string
  kind: string
  state: string
  tries: number
  created_at: string
  ended_at?: string
  code?: string
  reason?: string
}

export interface AlertDetail {
  alert: AlertView
  deliveries: AlertMessageView[]
  text?: string
  occurrence?: number
}

export interface DeadLetterView {
  task_id: string
  dag: string
  job: string
  dataset: string
  attempt: number
  tries: number
  rows: number
  bytes: number
  files: number
  handed_over_at: string
  failed_at: string
  scope?: string
  error?: Record<string, unknown>
  standing?: string
}

export interface DeadLettersResponse {
  letters: DeadLetterView[]
  after?: number
}

export interface LetterFileView {
  dataset: string
  path: string
  rows: number
  bytes: number
}

export interface RefusedRow {
  file?: string
  row?: number
  column?: string
  value?: string
  expected?: string
}

export interface DeadLetterDetail {
  letter: DeadLetterView
  files: LetterFileView[]
  row?: RefusedRow
  why_not_replayed?: string
  next_step?: string
}

export interface QueryTask {
  task_id: string
  dataset: string
  dag: string
  reason?: string
}

export interface QueryPlan {
  engine: string
  reason: string
  files: number
  of_files: number
  bytes: number
  generations: Record<string, string>
}

export interface GrantView {
  role: string
  granted_by: string
  expires_at?: string
  by_claim?: boolean
}

export interface MemberView {
  name: string
  kind: string
  created_by: string
  created_at: string
  roles: GrantView[]
  email?: string
  issuer?: string
  disabled_at?: string
  last_seen_at?: string
}

export interface MembersResponse {
  members: MemberView[]
}

export interface RoleView {
  name: string
  includes: string
  sees_pii: boolean
  reserved: boolean
  created_by: string
  created_at: string
  members: number
}

export interface RolesResponse {
  roles: RoleView[]
}

export interface TokenView {
  token_id: string
  name: string
  created_by: string
  created_at: string
  member?: string
  roles?: string[]
  datasets?: string[]
  expires_at?: string
  last_used_at?: string
}

export interface TokensResponse {
  tokens: TokenView[]
}

export interface IssuedToken {
  token: string
  warning?: string
}

export interface SecretView {
  name: string
  version?: number | string
  set_by?: string
  set_at?: string
  last_used_at?: string
  allowed_jobs?: string[]
  roles?: string[]
}

export interface SecretsResponse {
  secrets: SecretView[]
}

export interface SecretSet {
  name: string
  version?: number | string
  warnings?: string[]
}

export interface SecretRightsView {
  name: string
  allowed_jobs?: string[]
  roles?: string[]
  warnings?: string[]
}

export interface AuditEntry {
  audit_id: number
  at: string
  principal: string
  kind: string
  action: string
  object: Record<string, string>
  outcome: string
  times?: number
  remote?: string
}

export interface AuditResponse {
  entries: AuditEntry[]
}

export interface ChannelView {
  name: string
  config: Record<string, unknown>
  changed_at: string
  changed_by: string
  platform_alerts?: boolean
  waiting?: number
  dead?: number
  warnings?: string[]
}

export interface ChannelsResponse {
  channels: ChannelView[]
}

export interface ChannelTested {
  name: string
  outcome: 'delivered' | 'retry' | 'dead'
  code?: string
  reason?: string
}

export interface DeliveryView {
  delivery_id: string
  channel: string
  kind: string
  alert: string
  severity: string
  title: string
  state: string
  tries: number
  created_at: string
  ready_at?: string
  ended_at?: string
  code?: string
  reason?: string
}

export interface DeliveriesResponse {
  deliveries: DeliveryView[]
  before?: number
}

export interface DeliveriesChanged {
  changed: number
  retracted?: number
}

export interface AlertSummary {
  dag: string
  alert: string
  found: number
  sent: number
  retracted: number
  open: number
  last_found_at: string
  suppressed?: Record<string, number>
}

export interface AlertSummaryResponse {
  alerts: AlertSummary[]
}

export interface SilenceView {
  silence_id: string
  ends_at: string
  reason: string
  created_at: string
  created_by: string
  dag?: string
  alert?: string
  subject?: Record<string, unknown>
}

export interface SilencesResponse {
  silences: SilenceView[]
}

export interface HistoryPoint {
  at: string
  rows: number
  bytes: number
  commits: number
}

export interface DatasetHistory {
  dataset: string
  points: HistoryPoint[]
  seconds?: number
  updated_at?: string
  filled_at?: string
  is_cut?: boolean
}

export interface FindingView {
  level: 'ok' | 'warning' | 'problem'
  code: string
  sentence: string
  next_step?: string
}

export interface ProcessView {
  kind: string
  name: string
  seen_at: string
  is_silent?: boolean
  version?: string
  started_at?: string
  runtime?: string
}

export interface HealthResponse {
  findings: FindingView[]
  processes?: ProcessView[]
}

export interface FieldChangeView {
  field: string
  old?: string
  new?: string
}

export interface JobChangeView {
  job: string
  runtime: string
  operator: string
  changes?: FieldChangeView[]
  downstream_of?: string[]
  generated_for?: string
  reads?: string[]
  writes?: string[]
}

export interface DatasetChangeView {
  dataset: string
  changes: FieldChangeView[]
}

export interface WeightView {
  dataset: string
  scopes: number
  rows: number
  bytes: number
  events?: number
}

export interface ConcernedView {
  dag: string
  job: string
  dataset: string
  loses_it: boolean
  broken_columns?: string[]
}

export interface PlanSteps {
  added: JobChangeView[]
  in_place: JobChangeView[]
  rebuilt: JobChangeView[]
  removed: JobChangeView[]
  unchanged: string[]
  datasets_added: string[]
  datasets_changed: DatasetChangeView[]
  datasets_removed: string[]
  computed_anew: WeightView[]
  readers: ConcernedView[]
  dropped?: WeightView[]
}

export interface PlanResponse {
  dag: string
  noop: boolean
  text: string
  deployed_version?: number
  blocked?: string
  blocked_code?: string
  steps?: PlanSteps
  gives_up?: number
  being_built?: number
}

export interface Subscription {
  signal_type?: string
  min_confidence?: number
  direction?: 'BULLISH' | 'BEARISH' | 'NEUTRAL'
}

export interface PipelineConfig {
  dag?: string
  job?: string
  target?: 'task' | 'celery'
}

export interface PipelineView {
  pipeline_id: string
  user_id: string
  name: string
  trigger_mode: string
  is_active: boolean
  config: PipelineConfig
  created_at: string
  scanner_tickers?: string[]
  scanner_list?: string
  signal_subscriptions?: Subscription[]
  rules?: Record<string, unknown>
  schedule?: string
  launches_per_hour?: number
  running?: string
}

export interface PipelinesResponse {
  pipelines: PipelineView[]
}

export interface ExecutionView {
  execution_id: string
  pipeline_id: string
  pipeline: string
  user_id: string
  target: string
  status: 'PENDING' | 'RUNNING' | 'COMPLETED' | 'FAILED'
  created_at: string
  signal_id?: string
  signal?: Record<string, unknown>
  scheduled_for?: string
  started_at?: string
  finished_at?: string
  error?: Record<string, unknown>
}

export interface ExecutionsResponse {
  executions: ExecutionView[]
}

export interface SignalMinuteView {
  at: string
  seconds: number
  has_trigger?: boolean
  signals?: number
  matches?: number
  lag_seconds?: number
}

export interface SignalsResponse {
  minutes: SignalMinuteView[]
  is_limited?: boolean
}

export interface DerivedColumn {
  dataset: string
  column: string
  derived_from?: string[]
}

export interface ColumnLineage {
  columns: DerivedColumn[]
  cut?: boolean
}

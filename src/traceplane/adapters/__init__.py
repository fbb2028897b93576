"""Outside systems, each behind its own interface: object stores, queues, brokers.

celery_messages         messages to Celery's workers, through their broker
invokers                ways to call a function with a task: over HTTP, as a child process, or on AWS Lambda
object_cache            local copies of files in S3, so that operators and Spark see folders and no credentials
object_store            the object store: where the files of datasets are
object_store_folder     a folder of the file system as the object store
object_store_s3         an S3 bucket, or a compatible one, as the object store
object_stores           picks the object store from the settings
s3_policies             session policies: what temporary credentials of S3 may do
secret_store            where the values of secrets are
secret_store_aws        secrets in AWS Secrets Manager
secret_store_files      secrets as files of a mounted volume, as Kubernetes has them
secret_stores           picks the store of secrets outside Postgres from the settings
signal_publisher        where signals are published: the topic, or the folder, that triggers read
signal_publisher_kafka  signals to a Kafka topic
signal_source           sources of signals: partitions of messages, shared by the instances of a group
signal_source_folder    signals from a folder, for machines without a broker
signal_source_kafka     signals from a Kafka topic
signal_tail             the end of a signal topic: lengths of partitions, last messages
signal_tail_kafka       the end of a Kafka topic
wake_queue              wake-up queues: hints that a task is ready
wake_queue_postgres     the local wake-up queue: a Postgres table, long-polled over LISTEN/NOTIFY
wake_queue_sqs          wake-ups over Amazon SQS, for workers that run apart from the dispatcher
watched_files           the files that file sources list and their jobs read: in a folder, or in S3
"""

"""OpenAI's files and batches. A file is an upload that the job store keeps; a batch is a job on its lines."""

# Shared by the batch files: where to run, and running again what was stopped ahead of its end.
cd "${AFTERIMAGE:-$SLURM_SUBMIT_DIR}" || exit 1

# 138 = 128 + SIGUSR1: a training that saved itself and stopped, or a process that the signal ended
# before it could listen. Either continues from what is on disk. MAX_REQUEUES bounds a stage that
# never gets far enough to save anything.
requeue_if_stopped() {
  if [ "$1" -eq 138 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt "${MAX_REQUEUES:-50}" ]; then
    echo "stopped ahead of the time limit; requeued"
    scontrol requeue "$SLURM_JOB_ID"
    sleep 120 # until SLURM ends this run of the job
  fi
  exit "$1"
}

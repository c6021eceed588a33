//! Where whoever finds out that a file can no longer be trusted says so: the process then ends and reads its files again.
//! Knows nothing of what is in them.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// The way to the one who ends the process.
#[derive(Debug)]
pub struct Failure(Mutex<Option<oneshot::Sender<anyhow::Error>>>);

impl Failure {
    #[must_use]
    pub fn new() -> (Arc<Self>, oneshot::Receiver<anyhow::Error>) {
        let (report, reported) = oneshot::channel();
        (Arc::new(Self(Mutex::new(Some(report)))), reported)
    }

    /// The first report counts.
    pub fn report(&self, error: anyhow::Error) {
        tracing::error!(%error, "stopping");
        if let Some(failed) = self.0.lock().take() {
            let _ = failed.send(error);
        }
    }
}

/// The way of one file's keepers to [`Failure`]. It is laid after they have begun.
#[derive(Clone, Debug, Default)]
pub struct Reports(Arc<OnceLock<Arc<Failure>>>);

impl Reports {
    /// The first one named is told.
    pub fn go_to(&self, failure: Arc<Failure>) {
        let _ = self.0.set(failure);
    }

    pub fn send(&self, error: anyhow::Error) {
        match self.0.get() {
            Some(failure) => failure.report(error),
            // A command that works on the files by itself. What it has not been told as done is not done.
            None => tracing::error!(%error, "nobody is there to stop"),
        }
    }
}

//! The one binary. What it can do is in `cli`; here are only the allocator and the runtime it runs on.

/// The command line: one file per command.
mod cli;

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Buyers are served by the edge's own threads; these carry what happens beside: desk, clerk, accept loops.
const RUNTIME_THREADS: usize = 2;

fn main() -> ExitCode {
    let command = cli::parse();
    let built =
        tokio::runtime::Builder::new_multi_thread().worker_threads(RUNTIME_THREADS).enable_all().build();
    let runtime = match built {
        Ok(runtime) => runtime,
        Err(error) => return cli::failed(&anyhow::Error::from(error).context("no threads could be started")),
    };
    let code = runtime.block_on(cli::run(command));
    // What had to be waited for was waited for; a second signal means: not even that.
    runtime.shutdown_background();
    code
}

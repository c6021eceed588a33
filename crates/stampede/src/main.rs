//! The crowd's own program. What it can do is in `stampede::cli`; here is only the runtime it runs on.

use std::process::ExitCode;

use tokio::runtime::{Builder, Runtime};

fn main() -> ExitCode {
    let cli = match stampede::cli::parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let runtime = match runtime(cli.threads()) {
        Ok(runtime) => runtime,
        Err(error) => {
            let error = anyhow::Error::from(error).context("no threads could be started");
            return stampede::cli::failed(&error);
        }
    };
    let code = runtime.block_on(cli.run());
    // Nobody has to be waited for: what mattered has been awaited.
    runtime.shutdown_background();
    code
}

/// One thread needs no locks that wake others: a call costs about two thirds of what it costs on two.
fn runtime(threads: usize) -> std::io::Result<Runtime> {
    match threads {
        0 | 1 => Builder::new_current_thread().enable_all().build(),
        _ => Builder::new_multi_thread().worker_threads(threads).enable_all().build(),
    }
}

//! The crowd's own program. What it can do is in `stampede::cli`; here is only the runtime it runs on.

use std::process::ExitCode;

fn main() -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            return stampede::cli::failed(&anyhow::Error::from(error).context("no threads could be started"));
        }
    };
    let code = runtime.block_on(stampede::cli::run(std::env::args_os()));
    // Nobody has to be waited for: what mattered has been awaited.
    runtime.shutdown_background();
    code
}

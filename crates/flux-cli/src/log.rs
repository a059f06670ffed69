//! What the libraries have to say, on standard error.

use crate::error::Error;
use tracing_subscriber::filter::LevelFilter;

const VARIABLE: &str = "FLUX_LOG";

/// Warnings, or what `FLUX_LOG` asks for, one line each.
pub(crate) fn start() -> Result<(), Error> {
    let level = match std::env::var(VARIABLE) {
        Ok(level) if !level.is_empty() => level.parse().map_err(|_| Error::NoSuchLevel { level })?,
        _ => LevelFilter::WARN,
    };
    // Nobody may be listening; that is no reason to panic.
    let lines = tracing_subscriber::fmt().with_writer(std::io::stderr).log_internal_errors(false);
    lines.with_max_level(level).without_time().with_target(false).init();
    Ok(())
}

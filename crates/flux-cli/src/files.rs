//! The files that a command writes: each complete, or not there at all.

use crate::error::Error;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Writes a file, in place of the one that may be there.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    replace_by(path, |file| file.write_all(bytes))
}

fn replace_by(path: &Path, write: impl FnOnce(&mut File) -> std::io::Result<()>) -> Result<(), Error> {
    let file = |source| Error::File { action: "write", path: path.into(), source };
    let target = target(path).map_err(file)?;
    let mut temporary = temporary_beside(&target).map_err(file)?;
    unfinished::begin(temporary.path()).map_err(file)?;
    let written = write(temporary.as_file_mut());
    let placed = written.and_then(|()| temporary.persist(target).map_err(|error| error.error));
    unfinished::end();
    placed.map(drop).map_err(file)
}

/// The file that is being written, which goes with this process if a signal ends that.
mod unfinished {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    use signal_hook::iterator::Signals;
    use std::path::{Path, PathBuf};
    use std::sync::{Mutex, PoisonError};

    static FILE: Mutex<Option<PathBuf>> = Mutex::new(None);
    static IS_WATCHED: Mutex<bool> = Mutex::new(false);

    pub(super) fn begin(path: &Path) -> std::io::Result<()> {
        *FILE.lock().unwrap_or_else(PoisonError::into_inner) = Some(path.into());
        let mut is_watched = IS_WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
        if !*is_watched {
            let mut signals = Signals::new(
                [SIGHUP, SIGINT, SIGTERM].into_iter().filter(|&signal| !crate::launch::is_ignored(signal)),
            )?;
            let watch = move || {
                for signal in signals.forever() {
                    // Held to the end: nobody begins another one.
                    let file = FILE.lock().unwrap_or_else(PoisonError::into_inner);
                    file.iter().for_each(|file| drop(std::fs::remove_file(file)));
                    let _ = signal_hook::low_level::emulate_default_handler(signal);
                }
            };
            std::thread::Builder::new().name("signals".into()).spawn(watch)?;
            *is_watched = true;
        }
        Ok(())
    }

    pub(super) fn end() {
        *FILE.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Whether a file could be written there, found out before the work is done.
pub(crate) fn check_writable(path: &Path) -> Result<(), Error> {
    let file = |source| Error::File { action: "write", path: path.into(), source };
    target(path).and_then(|target| temporary_beside(&target)).map(drop).map_err(file)
}

/// The file that is to be replaced: behind a link, what it points to. Only files are replaced, never devices or pipes.
fn target(path: &Path) -> std::io::Result<PathBuf> {
    let other = std::io::Error::other;
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(path.into()),
        Err(error) => Err(error),
        Ok(found) if found.is_symlink() => {
            let target = std::fs::canonicalize(path).map_err(|_| other("it is a link to nothing"))?;
            if target.is_file() {
                Ok(target)
            } else {
                Err(other("it is a link to something that is not a file"))
            }
        }
        Ok(found) if found.is_dir() => Err(other("it is a folder")),
        Ok(found) if !found.is_file() => Err(other("it is not a file")),
        Ok(found) if found.permissions().readonly() => Err(std::io::ErrorKind::PermissionDenied.into()),
        Ok(_) => Ok(path.into()),
    }
}

fn temporary_beside(path: &Path) -> std::io::Result<tempfile::NamedTempFile> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    tempfile::Builder::new().prefix(".flux-").permissions(permissions()).tempfile_in(folder)
}

/// As for any file that a program makes: the process's mask takes away what others may not do.
fn permissions() -> std::fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(0o666)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};

    /// A signal in the midst of writing ends the process as ever, and leaves what was there before.
    #[test]
    fn a_signal_leaves_no_half_written_file() {
        const PATH: &str = "FLUX_TEST_FILE";
        if let Some(path) = std::env::var_os(PATH) {
            let begun = |file: &mut File| {
                file.write_all(b"half")?;
                std::io::stderr().write_all(b"begun")?;
                loop {
                    std::thread::park();
                }
            };
            return replace_by(Path::new(&path), begun).unwrap();
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report");
        replace(&path, b"whole").unwrap();
        for signal in flux_tests::launch::heeded_signals() {
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args(["--exact", "files::tests::a_signal_leaves_no_half_written_file", "--nocapture"]);
            let mut child =
                child.env(PATH, &path).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
            child.stderr.as_mut().unwrap().read_exact(&mut [0; 5]).unwrap();
            let sent = Command::new("kill").args(["-s", signal, &child.id().to_string()]).status().unwrap();
            assert!(sent.success() && child.wait().unwrap().signal().is_some(), "{signal}");
            let left: Vec<_> =
                std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
            assert_eq!(left, std::slice::from_ref(&path), "{signal}");
            assert_eq!(std::fs::read(&path).unwrap(), b"whole");
        }
    }
}

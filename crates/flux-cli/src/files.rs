//! The files that a command writes: each complete, or not there at all.

use crate::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Writes a file, in place of the one that may be there.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let file = |source| Error::File { action: "write", path: path.into(), source };
    let target = target(path).map_err(file)?;
    let mut temporary = temporary_beside(&target).map_err(file)?;
    temporary.write_all(bytes).map_err(file)?;
    temporary.persist(target).map_err(|error| file(error.error))?;
    Ok(())
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

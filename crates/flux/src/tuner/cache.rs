//! The file in which measurements are kept: for people to read, and for many processes to write to.
//!
//! It is replaced as a whole, so that who reads it sees one state or the next. Who writes holds the lock of a file beside it, reads
//! what is there, and adds to it. What is damaged, or of an older version, is not believed; and it is not lost either, but kept under
//! another name when the file is written anew. A file that cannot be read, or that a newer program has written, is left alone.

use super::entry::{Entry, Key};
use crate::{Error, Result};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What the file says that it is.
const FORMAT: &str = "flux tuning cache";
/// Raised when an old program would misunderstand a new file.
const VERSION: u32 = 2;
/// No cache is larger.
const MOST_BYTES: u64 = 64 << 20;
/// How long others may keep the file's lock.
const LOCK_LIMIT: Duration = Duration::from_secs(10);

/// Measurements by key.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Cache(BTreeMap<Key, Entry>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    format: String,
    version: u32,
    /// Each is understood by itself.
    entries: Vec<serde_json::Value>,
}

#[derive(Serialize)]
struct Written<'a> {
    format: &'static str,
    version: u32,
    entries: Vec<&'a Entry>,
}

/// What became of reading a file.
enum Found {
    Nothing,
    Whole(Cache),
    /// Some of it is not to be believed.
    Damaged(Cache, String),
    /// It may be as it should, but not for this process.
    NotOurs(String),
}

impl Found {
    fn cache(self) -> Cache {
        match self {
            Found::Nothing | Found::NotOurs(_) => Cache::default(),
            Found::Whole(cache) | Found::Damaged(cache, _) => cache,
        }
    }
}

impl Cache {
    /// What the file at `path` says; nothing, with a warning, if that cannot be believed.
    pub(crate) fn read(path: &Path) -> Self {
        let found = read(path);
        match &found {
            Found::Damaged(cache, reason) => {
                tracing::warn!(?path, %reason, kept = cache.0.len(), "a tuning cache is ignored, in part or whole");
            }
            Found::NotOurs(reason) => tracing::warn!(?path, %reason, "a tuning cache is ignored"),
            Found::Nothing | Found::Whole(_) => {}
        }
        found.cache()
    }

    /// What is to be believed of a file with these bytes.
    #[cfg(test)]
    pub(super) fn of(bytes: &[u8]) -> Self {
        parse(bytes).cache()
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Entry> {
        self.0.get(key)
    }

    pub(crate) fn add(&mut self, entry: Entry) {
        self.0.insert(entry.key().clone(), entry);
    }

    pub(crate) fn into_entries(self) -> impl Iterator<Item = Entry> {
        self.0.into_values()
    }

    /// Those whose keys differ from `key` in the rows alone, in the order of these.
    pub(crate) fn of_layer(&self, key: &Key) -> Vec<Entry> {
        let of = |m| Key { m, ..key.clone() };
        self.0.range(of(0)..=of(usize::MAX)).map(|(_, entry)| entry.clone()).collect()
    }

    /// Adds `entries` to what the file at `path` says by now, and returns all that it says then.
    pub(crate) fn write(path: &Path, entries: &[Entry]) -> Result<Self> {
        let failed = |what: &'static str| {
            move |error: std::io::Error| Error::TuningCache {
                path: path.to_owned(),
                reason: format!("cannot {what}: {error}"),
            }
        };
        if std::fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            let reason = "it is not a file; name one".to_owned();
            return Err(Error::TuningCache { path: path.to_owned(), reason });
        }
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(failed("make its folder"))?;
        }
        // Never removed: who waits for the lock of a file that is gone would not keep others out.
        let lock = File::options().create(true).append(true).open(beside(path, "lock"));
        let lock = lock.map_err(failed("open its lock"))?;
        lock_within_limit(&lock).map_err(failed("lock it"))?;
        let mut cache = match read(path) {
            Found::Nothing => Self::default(),
            Found::Whole(cache) => cache,
            Found::Damaged(cache, reason) => {
                let aside = free_beside(path, "damaged");
                tracing::warn!(?path, %reason, ?aside, "a tuning cache was damaged, or is another file; it is kept aside");
                std::fs::rename(path, &aside).map_err(failed("keep aside what is there"))?;
                cache
            }
            Found::NotOurs(reason) => return Err(Error::TuningCache { path: path.to_owned(), reason }),
        };
        entries.iter().for_each(|entry| cache.add(entry.clone()));
        let text = cache.text();
        if std::fs::read(path).is_ok_and(|old| old == text.as_bytes()) {
            return Ok(cache);
        }
        let new = beside(path, "new");
        let write = || {
            let mut file = File::create(&new)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&new, path)
        };
        write().map_err(failed("write it"))?;
        Ok(cache)
    }

    pub(super) fn text(&self) -> String {
        let document = Written { format: FORMAT, version: VERSION, entries: self.0.values().collect() };
        // A document of strings and numbers always has a text.
        serde_json::to_string_pretty(&document).unwrap_or_default() + "\n"
    }
}

fn lock_within_limit(file: &File) -> std::io::Result<()> {
    let begin = Instant::now();
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) if begin.elapsed() < LOCK_LIMIT => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// The file of that name with something behind it.
fn beside(path: &Path, what: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(what);
    name.into()
}

/// The same, and a number if there is such a file.
fn free_beside(path: &Path, what: &str) -> PathBuf {
    let numbered = (2..1000).map(|number| beside(path, &format!("{what}-{number}")));
    let mut names = std::iter::once(beside(path, what)).chain(numbered);
    names.find(|name| !name.exists()).unwrap_or_else(|| beside(path, what))
}

fn read(path: &Path) -> Found {
    let bytes = || {
        // Nor to wait for whoever writes to a pipe.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
        if !file.metadata()?.is_file() {
            return Err(std::io::Error::other("it is not a file"));
        }
        let mut bytes = Vec::new();
        file.take(MOST_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    match bytes() {
        Ok(bytes) => parse(&bytes),
        Err(error) if error.kind() == ErrorKind::NotFound => Found::Nothing,
        Err(error) => Found::NotOurs(format!("it cannot be read: {error}")),
    }
}

fn parse(bytes: &[u8]) -> Found {
    let damaged = |reason: String| Found::Damaged(Cache::default(), reason);
    let document: Document = match serde_json::from_slice(bytes) {
        Ok(document) => document,
        Err(error) => return damaged(error.to_string()),
    };
    if document.format != FORMAT {
        return damaged(format!("it is {:?}, not {FORMAT:?}", document.format));
    }
    if document.version > VERSION {
        let version = document.version;
        return Found::NotOurs(format!(
            "it is of version {version}, and this program knows version {VERSION}: name another file"
        ));
    }
    if document.version != VERSION {
        return damaged(format!(
            "it is of version {}, and this program knows version {VERSION}",
            document.version
        ));
    }
    let all = document.entries.len();
    let read = |value| serde_json::from_value::<Entry>(value).ok().filter(Entry::is_valid);
    let mut cache = Cache::default();
    document.entries.into_iter().filter_map(read).for_each(|entry| cache.add(entry));
    match all - cache.0.len() {
        0 => Found::Whole(cache),
        bad => Found::Damaged(cache, format!("{bad} of {all} entries are damaged, or there twice")),
    }
}

//! Compresses the kernels' PTX: it is text, and every program that uses this crate carries all of it.

use std::error::Error;
use std::fmt::Write;
use std::path::PathBuf;
use std::{env, fs};

fn main() -> Result<(), Box<dyn Error>> {
    let prebuilt = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("prebuilt");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    println!("cargo::rerun-if-changed={}", prebuilt.display());
    let mut files: Vec<_> =
        fs::read_dir(prebuilt)?.map(|entry| Ok(entry?.path())).collect::<Result<_, std::io::Error>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "ptx"));
    files.sort();
    let mut list = String::from("&[\n");
    for file in files {
        let name = file.file_stem().and_then(|stem| stem.to_str()).ok_or("a file without a name")?;
        fs::write(out.join(name), lz4_flex::compress_prepend_size(&fs::read(&file)?))?;
        writeln!(list, "    ({name:?}, include_bytes!(concat!(env!(\"OUT_DIR\"), \"/\", {name:?}))),")?;
    }
    list.push(']');
    fs::write(out.join("kernels.rs"), list)?;
    Ok(())
}

//! Where the test files are, and where they run.

use std::env;
use std::error::Error;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

const TEST_CRATE: &str = "datafusion-sqllogictest";
const TEST_FILES: &str = "test_files";
const SCRATCH: &str = "scratch";

/// A folder in which the test files find what they name by relative paths: themselves, the crate's data, and a scratch
/// folder that they write to. The crate's own folder is only read.
pub(crate) struct Sandbox {
    /// Removes the folder on drop.
    _folder: TempDir,
    test_files: PathBuf,
    root: String,
}

/// One sqllogictest file.
#[derive(Debug, Clone)]
pub(crate) struct TestFile {
    /// Where it is.
    pub(crate) path: PathBuf,
    /// Within the folder of all test files.
    pub(crate) relative_path: PathBuf,
    /// The folder that stands for the source tree of DataFusion while the file runs, without the slash at its start: so
    /// plans name it.
    pub(crate) root: String,
}

impl TestFile {
    pub(crate) fn name(&self) -> String {
        self.relative_path.display().to_string()
    }
}

impl Sandbox {
    /// Makes the folder and changes into it: the test files name their data relative to it.
    pub(crate) fn enter() -> Result<Self, Box<dyn Error>> {
        let source = source_of_test_crate()?;
        let folder = TempDir::with_prefix("conformance-")?;
        // As deep as in the source tree of DataFusion, so that what is outside the crate is looked for in here.
        let crate_folder = folder.path().join("datafusion").join("sqllogictest");
        let linked = crate_folder.join(TEST_FILES);
        fs::create_dir_all(linked.join(SCRATCH))?;
        let test_files = source.join(TEST_FILES);
        for entry in fs::read_dir(&test_files)? {
            let entry = entry?;
            if entry.file_name() != SCRATCH {
                symlink(entry.path(), linked.join(entry.file_name()))?;
            }
        }
        symlink(source.join("data"), crate_folder.join("data"))?;
        env::set_current_dir(&crate_folder)?;
        let root = folder.path().canonicalize()?.display().to_string();
        Ok(Self {
            _folder: folder,
            test_files,
            root: root.trim_start_matches('/').to_owned(),
        })
    }

    /// The test files that mention Parquet, themselves or in a file that they include, by path.
    pub(crate) fn files_that_touch_parquet(&self) -> Result<Vec<TestFile>, Box<dyn Error>> {
        let mut files = Vec::new();
        collect(&self.test_files, &mut files)?;
        files.sort();
        let mut touching = Vec::new();
        for path in files {
            if mentions_parquet(&path)? {
                touching.push(TestFile {
                    relative_path: path.strip_prefix(&self.test_files)?.to_owned(),
                    path,
                    root: self.root.clone(),
                });
            }
        }
        Ok(touching)
    }
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "slt") {
            files.push(path);
        }
    }
    Ok(())
}

fn mentions_parquet(path: &Path) -> io::Result<bool> {
    let text = fs::read_to_string(path)?.to_lowercase();
    if text.contains("parquet") {
        return Ok(true);
    }
    for included in text
        .lines()
        .filter_map(|line| line.strip_prefix("include "))
    {
        let included = path.with_file_name(included.trim());
        // A pattern rather than a file is not followed: those that are there include files without data of their own.
        if included.is_file() && mentions_parquet(&included)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The folder that Cargo has the sources of the test crate in.
fn source_of_test_crate() -> Result<PathBuf, Box<dyn Error>> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // Asked for at run time: Cargo may take a build of the same sources in another folder for one of these.
    let package = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| "conformance".into());
    let output = Command::new(cargo)
        .args([
            "metadata",
            "--format-version",
            "1",
            "--locked",
            "--manifest-path",
        ])
        .arg(PathBuf::from(package).join("Cargo.toml"))
        .output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!("cargo metadata failed: {said}").into());
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let manifest = metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|package| package["name"] == TEST_CRATE)
        .and_then(|package| package["manifest_path"].as_str())
        .ok_or_else(|| format!("{TEST_CRATE} is not among the dependencies"))?;
    let folder = Path::new(manifest)
        .parent()
        .ok_or_else(|| format!("{manifest} has no folder"))?;
    Ok(folder.to_owned())
}

//! The user's own Parquet: where it is, and what to ask of it.

use std::path::Path as FilePath;
use std::sync::Arc;

use arrow::datatypes::{DataType, Schema};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectStore, parse_url_opts};
use url::Url;

use super::Result;

/// Parquet somewhere.
pub(crate) struct OwnData {
    /// The store it is in.
    pub(crate) store: Arc<dyn ObjectStore>,
    /// The path in the store; ends with a slash if it is a folder.
    pub(crate) path: String,
    /// Whether the store is reached over a network.
    pub(crate) remote: bool,
}

/// Finds the store of a local path or URL.
///
/// # Errors
///
/// If there is nothing at a local path, the URL's scheme is unknown, or its store cannot be configured from the
/// environment.
pub(crate) fn open(location: &str) -> Result<OwnData> {
    match Url::parse(location) {
        // One letter is the drive of a Windows path.
        Ok(url) if url.scheme().len() > 1 => open_url(location, &url),
        _ => open_local(FilePath::new(location)),
    }
}

fn open_url(location: &str, url: &Url) -> Result<OwnData> {
    if url.scheme() == "file" {
        let path = url
            .to_file_path()
            .map_err(|()| format!("{location} is not the URL of a file on this machine"))?;
        return open_local(&path);
    }
    // The stores pass over variables that are none of theirs. Who writes `http://` need not allow it once more.
    let environment = std::env::vars_os()
        .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)));
    let http = (url.scheme() == "http").then(|| ("allow_http".to_owned(), "true".to_owned()));
    let options = environment.chain(http);
    let (store, path) =
        parse_url_opts(url, options).map_err(|e| format!("cannot open {location}: {e}"))?;
    let path = with_slash_if(url.path().ends_with('/'), &path);
    Ok(OwnData {
        store: Arc::from(store),
        path,
        remote: true,
    })
}

fn open_local(path: &FilePath) -> Result<OwnData> {
    let describe = |e: &dyn std::fmt::Display| format!("cannot open {}: {e}", path.display());
    let absolute = path.canonicalize().map_err(|e| describe(&e))?;
    let inside = Path::from_absolute_path(&absolute).map_err(|e| describe(&e))?;
    let path = with_slash_if(absolute.is_dir(), &inside);
    Ok(OwnData {
        store: Arc::new(LocalFileSystem::new()),
        path,
        remote: false,
    })
}

fn with_slash_if(folder: bool, path: &Path) -> String {
    if folder {
        format!("{path}/")
    } else {
        path.to_string()
    }
}

/// A query that reads every column of a table: its rows, and the smallest and largest value of each column that has an
/// order, or the number of values of one that has none.
pub(crate) fn default_sql(table: &str, schema: &Schema) -> String {
    let columns = schema.fields().iter().map(|field| {
        let name = field.name().replace('"', "\"\"");
        if has_minimum(field.data_type()) {
            format!("min(\"{name}\") AS \"min {name}\", max(\"{name}\") AS \"max {name}\"")
        } else {
            format!("count(\"{name}\") AS \"count {name}\"")
        }
    });
    let columns: Vec<_> = std::iter::once("count(*) AS \"rows\"".to_owned())
        .chain(columns)
        .collect();
    // Statistics would answer without reading anything; this filter keeps every row, and nobody can know it before.
    format!(
        "SELECT {} FROM {table} WHERE random() >= 0",
        columns.join(", ")
    )
}

fn has_minimum(data_type: &DataType) -> bool {
    data_type.is_primitive() && !matches!(data_type, DataType::Interval(_))
        || matches!(
            data_type,
            DataType::Boolean | DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View
        )
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::Field;

    use super::*;

    #[test]
    fn locations_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a b.parquet");
        std::fs::write(&file, b"").unwrap();
        let opened = open(folder.path().to_str().unwrap()).unwrap();
        assert!(
            opened.path.ends_with('/') && !opened.remote,
            "{}",
            opened.path
        );
        for location in [
            file.to_str().unwrap(),
            Url::from_file_path(&file).unwrap().as_str(),
        ] {
            let opened = open(location).unwrap();
            assert!(
                opened.path.ends_with("/a b.parquet") && !opened.remote,
                "{}",
                opened.path
            );
        }
        let opened = open("https://example.com/a/b.parquet").unwrap();
        assert_eq!((opened.path.as_str(), opened.remote), ("a/b.parquet", true));
        let opened = open("https://example.com/a/b/").unwrap();
        assert_eq!((opened.path.as_str(), opened.remote), ("a/b/", true));
    }

    #[test]
    fn what_cannot_be_opened_is_named() {
        for location in [
            "no/such/file.parquet",
            "gopher://hole/a.parquet",
            "file://elsewhere/a",
        ] {
            let error = open(location).err().unwrap().to_string();
            assert!(error.contains(location), "{error}");
        }
    }

    #[test]
    fn every_column_is_asked_for() {
        let schema = Schema::new(vec![
            Field::new("a\"b", DataType::Int64, true),
            Field::new("l", DataType::new_list(DataType::Int64, true), true),
        ]);
        let expected = "SELECT count(*) AS \"rows\", min(\"a\"\"b\") AS \"min a\"\"b\", \
            max(\"a\"\"b\") AS \"max a\"\"b\", count(\"l\") AS \"count l\" FROM t WHERE random() >= 0";
        assert_eq!(default_sql("t", &schema), expected);
    }
}

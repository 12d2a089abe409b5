//! A store whose reads go wrong as scripted.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use object_store::path::Path;
use object_store::{Error, GetOptions, GetRange, GetResult, GetResultPayload, ObjectStore, Result};
use parking_lot::Mutex;

use super::behaviour::Behaviour;

/// A read about to be answered. HEAD requests are not scripted.
#[derive(Debug)]
pub(crate) struct Attempt<'a> {
    /// Which read of the store this is, from 1.
    pub(crate) n: usize,
    /// How often exactly this range of this object was asked for, this time included.
    pub(crate) repeat: usize,
    pub(crate) path: &'a Path,
    pub(crate) range: Option<&'a GetRange>,
}

/// What to do with a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Forward,
    /// An error whose text holds [`INJECTED`].
    Fail,
    /// As `Fail`, but the answer begins and breaks off half way.
    FailInBody,
    /// The store's word for a kind of request that it does not have.
    Refuse,
    /// Leaves out the last byte of the body.
    OneByteShort,
    /// An answer without a body.
    Empty,
    /// Appends a byte to the body.
    OneByteLong,
    /// Never answers.
    Hang,
    /// Panics with [`INJECTED`].
    Panic,
}

/// In the text of every scripted error and panic.
pub(crate) const INJECTED: &str = "injected 503 Service Unavailable";

type Script = Arc<dyn Fn(&Attempt<'_>) -> Action + Send + Sync>;

/// Reads that go wrong as a function says.
pub(crate) struct Faulty {
    script: Script,
    reads: AtomicUsize,
    repeats: Mutex<HashMap<(Path, String), usize>>,
}

impl Faulty {
    pub(crate) fn new(script: impl Fn(&Attempt<'_>) -> Action + Send + Sync + 'static) -> Self {
        Self {
            script: Arc::new(script),
            reads: AtomicUsize::new(0),
            repeats: Mutex::new(HashMap::new()),
        }
    }

    fn action(&self, location: &Path, range: Option<&GetRange>) -> Action {
        let n = self.reads.fetch_add(1, Ordering::Relaxed) + 1;
        let key = (
            location.clone(),
            range.map(GetRange::to_string).unwrap_or_default(),
        );
        let repeat = {
            let mut repeats = self.repeats.lock();
            let repeat = repeats.entry(key).or_default();
            *repeat += 1;
            *repeat
        };
        (self.script)(&Attempt {
            n,
            repeat,
            path: location,
            range,
        })
    }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faulty")
    }
}

fn injected(location: &Path, range: Option<&GetRange>) -> Error {
    let range = range.map(|range| format!(" {range}")).unwrap_or_default();
    Error::Generic {
        store: "Faulty",
        source: format!("{INJECTED}: {location}{range}").into(),
    }
}

async fn resized(result: GetResult, resize: impl FnOnce(Bytes) -> Bytes) -> Result<GetResult> {
    let (meta, range, attributes) = (
        result.meta.clone(),
        result.range.clone(),
        result.attributes.clone(),
    );
    let body = resize(result.bytes().await?);
    let body = futures::stream::once(async move { Ok(body) }).boxed();
    Ok(GetResult {
        payload: GetResultPayload::Stream(body),
        meta,
        range,
        attributes,
    })
}

#[async_trait]
impl Behaviour for Faulty {
    async fn get_opts(
        &self,
        inner: &Arc<dyn ObjectStore>,
        location: &Path,
        options: GetOptions,
    ) -> Result<GetResult> {
        if options.head {
            return inner.get_opts(location, options).await;
        }
        let range = options.range.clone();
        let action = self.action(location, range.as_ref());
        let forward = inner.get_opts(location, options);
        match action {
            Action::Forward => forward.await,
            Action::Fail => Err(injected(location, range.as_ref())),
            Action::Refuse => Err(Error::NotSupported {
                source: format!("{INJECTED}: {range:?}").into(),
            }),
            Action::FailInBody => {
                let result = forward.await?;
                let (meta, attributes) = (result.meta.clone(), result.attributes.clone());
                let answered = result.range.clone();
                let body = result.bytes().await?;
                let half = body.slice(..body.len() / 2);
                let items = [Ok(half), Err(injected(location, range.as_ref()))];
                let payload = GetResultPayload::Stream(futures::stream::iter(items).boxed());
                Ok(GetResult {
                    payload,
                    meta,
                    range: answered,
                    attributes,
                })
            }
            Action::OneByteShort => {
                resized(forward.await?, |body| {
                    body.slice(..body.len().saturating_sub(1))
                })
                .await
            }
            Action::Empty => resized(forward.await?, |_| Bytes::new()).await,
            Action::OneByteLong => {
                resized(forward.await?, |body| {
                    let mut longer = BytesMut::from(body.as_ref());
                    longer.extend_from_slice(&[0]);
                    longer.freeze()
                })
                .await
            }
            Action::Hang => futures::future::pending().await,
            Action::Panic => panic!("{INJECTED}: {location}"),
        }
    }
}

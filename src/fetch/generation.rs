//! Which generation of an object a scan reads.

use std::fmt;

use object_store::ObjectMeta;

/// What is known of the generation of an object, from the listing or from an answer.
///
/// Two generations are told apart by the strongest validator both sides have: the ETag, else the version, else size and time
/// of last modification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Generation {
    size: u64,
    e_tag: Option<String>,
    version: Option<String>,
    /// `None` where the listing did not say (a file made by hand has the epoch).
    last_modified: Option<LastModified>,
}

impl Generation {
    pub(crate) fn of(meta: &ObjectMeta) -> Self {
        let last_modified = LastModified {
            seconds: meta.last_modified.timestamp(),
            nanos: meta.last_modified.timestamp_subsec_nanos(),
        };
        Self {
            size: meta.size,
            e_tag: meta.e_tag.clone().filter(|tag| !tag.is_empty()),
            version: meta.version.clone().filter(|version| !version.is_empty()),
            last_modified: (last_modified != LastModified::default()).then_some(last_modified),
        }
    }

    /// Bytes of the object.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// The value for `If-Match`, where the ETag is one that servers compare as sent.
    ///
    /// A weak ETag never matches `If-Match` (RFC 9110, 13.1.1), and some listings carry the tag without its quotes, which
    /// is not the form servers take back: those are compared on the answer only.
    pub(crate) fn if_match(&self) -> Option<&str> {
        self.e_tag
            .as_deref()
            .filter(|tag| tag.len() > 2 && tag.starts_with('"') && tag.ends_with('"'))
    }

    /// Whether an answer that carries `found` can be of this generation.
    pub(crate) fn admits(&self, found: &Self) -> bool {
        if let (Some(expected), Some(found)) = (&self.e_tag, &found.e_tag) {
            return opaque_tag(expected) == opaque_tag(found);
        }
        if let (Some(expected), Some(found)) = (&self.version, &found.version) {
            return expected == found;
        }
        if self.size != found.size {
            return false;
        }
        if found.e_tag.is_some() || found.version.is_some() {
            // The store has validators and the listing has none: it was not the store that was listed, but a catalog, whose
            // time of last modification is another clock's. This answer is the first to be relied on.
            return true;
        }
        match (self.last_modified, found.last_modified) {
            (Some(expected), Some(found)) => expected.admits(found),
            _ => true,
        }
    }

    /// Takes over what an admitted answer knows and this does not, so that the next answer is held to it.
    ///
    /// An ETag that came with an answer also replaces the listing's spelling of it: it is the form the server takes back.
    pub(crate) fn learn(&mut self, found: Self) {
        self.e_tag = found.e_tag.or_else(|| self.e_tag.take());
        self.version = self.version.take().or(found.version);
        self.last_modified = self.last_modified.or(found.last_modified);
    }

    /// Whether both carry an ETag and these differ.
    pub(crate) fn has_other_e_tag(&self, other: &Self) -> bool {
        match (&self.e_tag, &other.e_tag) {
            (Some(a), Some(b)) => opaque_tag(a) != opaque_tag(b),
            _ => false,
        }
    }
}

/// Time since the epoch. HTTP headers carry whole seconds, listings and local file systems more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct LastModified {
    seconds: i64,
    nanos: u32,
}

impl LastModified {
    fn admits(self, found: Self) -> bool {
        self.seconds == found.seconds
            && (self.nanos == found.nanos || self.nanos == 0 || found.nanos == 0)
    }
}

/// The part of an ETag that identifies, whatever form a listing or a header gave it.
fn opaque_tag(tag: &str) -> &str {
    tag.trim_start_matches("W/").trim_matches('"')
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.size)?;
        if let Some(tag) = &self.e_tag {
            write!(f, ", ETag {tag}")?;
        }
        if let Some(version) = &self.version {
            write!(f, ", version {version}")?;
        }
        if let Some(LastModified { seconds, nanos }) = self.last_modified {
            write!(f, ", last modified {seconds}.{nanos:09} s after the epoch")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generation(
        size: u64,
        e_tag: Option<&str>,
        version: Option<&str>,
        seconds: Option<i64>,
    ) -> Generation {
        Generation {
            size,
            e_tag: e_tag.map(Into::into),
            version: version.map(Into::into),
            last_modified: seconds.map(|seconds| LastModified { seconds, nanos: 0 }),
        }
    }

    #[test]
    fn the_strongest_common_validator_decides() {
        let listed = generation(10, Some("\"a\""), None, Some(5));
        assert!(listed.admits(&generation(10, Some("\"a\""), Some("v"), Some(6))));
        assert!(!listed.admits(&generation(10, Some("\"b\""), None, Some(5))));
        // A store may count the size of the answer for that of the object.
        assert!(listed.admits(&generation(11, Some("\"a\""), None, Some(5))));
        assert!(!listed.admits(&generation(11, None, None, Some(5))));
        // No ETag in the answer: the time decides.
        assert!(listed.admits(&generation(10, None, None, Some(5))));
        assert!(!listed.admits(&generation(10, None, None, Some(6))));
        // Only versions in common.
        let versioned = generation(10, None, Some("1"), Some(5));
        assert!(versioned.admits(&generation(10, None, Some("1"), Some(9))));
        assert!(!versioned.admits(&generation(10, None, Some("2"), Some(5))));
        // A catalog's time is not the store's, and where the store knows better it does not count.
        assert!(generation(10, None, None, Some(5)).admits(&generation(
            10,
            Some("x"),
            None,
            Some(9)
        )));
        assert!(!generation(10, None, None, Some(5)).admits(&generation(10, None, None, Some(9))));
        // Nothing in common but the size.
        assert!(generation(10, None, None, None).admits(&generation(10, Some("x"), None, Some(1))));
    }

    #[test]
    fn times_are_compared_as_finely_as_both_sides_know_them() {
        let at = |seconds, nanos| LastModified { seconds, nanos };
        assert!(at(5, 7).admits(at(5, 7)));
        assert!(!at(5, 7).admits(at(5, 8)));
        assert!(at(5, 7).admits(at(5, 0)) && at(5, 0).admits(at(5, 7)));
        assert!(!at(5, 0).admits(at(6, 0)));
    }

    #[test]
    fn spellings_of_one_tag_are_one_tag() {
        for (listed, answered) in [
            ("0x8D", "\"0x8D\""),
            ("W/\"a\"", "\"a\""),
            ("\"a\"", "W/\"a\""),
        ] {
            let listed = generation(1, Some(listed), None, None);
            assert!(listed.admits(&generation(1, Some(answered), None, None)));
        }
    }

    #[test]
    fn only_strong_quoted_tags_are_sent() {
        assert_eq!(
            generation(1, Some("\"a\""), None, None).if_match(),
            Some("\"a\"")
        );
        for tag in ["a", "W/\"a\"", "\"", ""] {
            assert_eq!(
                generation(1, Some(tag), None, None).if_match(),
                None,
                "{tag}"
            );
        }
    }

    #[test]
    fn what_the_first_answer_says_binds_the_second() {
        let mut known = generation(10, None, None, None);
        let first = generation(10, Some("\"a\""), Some("1"), Some(5));
        assert!(known.admits(&first));
        known.learn(first);
        assert!(!known.admits(&generation(10, Some("\"b\""), Some("1"), Some(5))));
    }
}

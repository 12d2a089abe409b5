//! Every option with values to try.

use datafusion_parquet_prefetch::PrefetchOptions;

use super::STOCK_KEY;

/// What to try with an option.
pub(super) struct Sample {
    pub(super) name: &'static str,
    pub(super) default: &'static str,
    /// One word that is not the default, and is shown as it is given.
    pub(super) word: &'static str,
    /// Another value, as a literal of SQL and as it is shown.
    pub(super) literal: &'static str,
    pub(super) shown: &'static str,
    /// Literals for 0.
    pub(super) zeros: &'static [&'static str],
    /// Texts that are refused, and what the error says was expected.
    bad: &'static [&'static [&'static str]],
    expected: &'static str,
    /// One of stock's own keys of the same kind, and a word for it.
    pub(super) stock: (&'static str, &'static str),
}

const SIZE_ZEROS: &[&str] = &["0", "''", "'NULL'", "\"null\"", "'0 MiB'"];
const BAD_SIZES: &[&str] = &[
    "lots",
    "-1",
    "1.5",
    "NaN",
    "true",
    "20 XB",
    "18446744073709551616",
    "0.1K",
];
const BAD_COUNTS: &[&str] = &[
    "",
    " ",
    "NULL",
    "null",
    "lots",
    "-1",
    "-0",
    "1.5",
    "1e3",
    "1_000",
    "NaN",
    "true",
    "8K",
    "20 MiB",
    "18446744073709551616",
];
/// Every option, which [`every_option_has_its_sample`] sees to.
pub(super) static SAMPLES: [Sample; 6] = [
    Sample {
        name: "prefetch_size",
        default: "0",
        word: "7",
        literal: "'20 MiB'",
        shown: "20971520",
        zeros: SIZE_ZEROS,
        bad: &[BAD_SIZES],
        expected: "whole number of bytes",
        stock: (STOCK_KEY, "7"),
    },
    Sample {
        name: "read_ahead_bytes",
        default: "0",
        word: "7",
        literal: "'1.5G'",
        shown: "1610612736",
        zeros: SIZE_ZEROS,
        bad: &[BAD_SIZES],
        expected: "whole number of bytes",
        stock: (STOCK_KEY, "7"),
    },
    Sample {
        name: "read_ahead_conditional",
        default: "always",
        word: "never",
        literal: "'Adaptive'",
        shown: "adaptive",
        zeros: &[],
        bad: &[&[
            "",
            "NULL",
            "null",
            "sometimes",
            "0",
            "1",
            "true",
            "off",
            "never, always",
        ]],
        expected: "one of: always, never, adaptive",
        stock: ("datafusion.explain.format", "tree"),
    },
    Sample {
        name: "read_ahead_files",
        default: "256",
        word: "7",
        literal: "' +12 '",
        shown: "12",
        zeros: &["0", "'0'", "+0"],
        bad: &[BAD_COUNTS],
        expected: "whole number from 0 to",
        stock: (STOCK_KEY, "7"),
    },
    Sample {
        name: "max_request_bytes",
        default: "8388608",
        word: "7",
        literal: "'16M'",
        shown: "16777216",
        zeros: SIZE_ZEROS,
        bad: &[BAD_SIZES],
        expected: "whole number of bytes",
        stock: (STOCK_KEY, "7"),
    },
    Sample {
        name: "max_requests",
        default: "256",
        word: "7",
        literal: "0012",
        shown: "12",
        zeros: &[],
        bad: &[BAD_COUNTS, &["0", "+0"]],
        expected: "whole number from 1 to",
        // It may not be 0 either.
        stock: ("datafusion.execution.soft_max_rows_per_output_file", "7"),
    },
];

impl Sample {
    pub(super) fn key(&self) -> String {
        format!("datafusion.execution.parquet.{}", self.name)
    }

    pub(super) fn extension_key(&self) -> String {
        format!("parquet_prefetch.{}", self.name)
    }

    /// Texts that are refused.
    pub(super) fn bad(&self) -> Vec<&'static str> {
        self.bad.concat()
    }

    /// Whether it is a size in bytes, for which empty and `NULL` mean 0.
    pub(super) fn is_size(&self) -> bool {
        self.zeros == SIZE_ZEROS
    }

    /// Holds an error against what every error about a value has to say.
    pub(super) fn check_error(&self, error: &str, key: &str, value: &str) {
        for part in [&format!("'{key}'"), &format!("'{value}'"), self.expected] {
            assert!(error.contains(part), "{part} is not in: {error}");
        }
    }
}

#[test]
fn every_option_has_its_sample() {
    let definitions = PrefetchOptions::definitions().iter();
    let defined: Vec<_> = definitions
        .map(|option| (option.name(), option.default_value()))
        .collect();
    let sampled: Vec<_> = SAMPLES
        .iter()
        .map(|sample| (sample.name, sample.default.to_owned()))
        .collect();
    assert_eq!(defined, sampled);
}

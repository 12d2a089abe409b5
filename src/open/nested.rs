//! Which leaves of a nested column a projection needs.
//!
//! Uses of a column are collected as a [`Need`], a tree of field names, in which the uses of all
//! expressions meet. [`LeafWalk`] then goes through the Arrow type of the column and its Parquet
//! leaves side by side, so that the leaves to read and the type that the reader will emit for them
//! come from the same walk and cannot disagree.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef};

/// What is needed of a column, or of a field inside one.
///
/// Lists have no level of their own: the fields of a list are those of its items.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Need {
    /// Everything below.
    Whole,
    /// Only these fields. Nothing at all while there are none.
    Fields(BTreeMap<String, Need>),
}

impl Default for Need {
    fn default() -> Self {
        Self::Fields(BTreeMap::new())
    }
}

impl Need {
    /// Everything below the field that `names` lead to.
    pub(crate) fn path(names: Vec<String>) -> Self {
        let wrap = |need, name| Self::Fields(BTreeMap::from([(name, need)]));
        names.into_iter().rev().fold(Self::Whole, wrap)
    }

    /// What a cast of `source` to `target` looks at, or `None` where it cannot be left at that: a struct of which it looks at
    /// no field would not be read at all.
    ///
    /// A cast between structs takes its source fields by the names in the target, also below
    /// `List` and `LargeList`, and ignores the others. A type it converts in another way (a map,
    /// for instance, whose entries are matched by position) is needed whole.
    pub(crate) fn cast(source: &DataType, target: &DataType) -> Option<Self> {
        match (source, target) {
            (DataType::Struct(source), DataType::Struct(target)) => {
                // Of fields with the same name the first counts, so it is inserted last.
                let by_name: HashMap<&str, &FieldRef> = target
                    .iter()
                    .rev()
                    .map(|field| (field.name().as_str(), field))
                    .collect();
                let mut fields = BTreeMap::<String, Need>::new();
                for field in source {
                    if let Some(target) = by_name.get(field.name().as_str()) {
                        let need = Self::cast(field.data_type(), target.data_type())?;
                        fields.entry(field.name().clone()).or_default().merge(need);
                    }
                }
                (!fields.is_empty()).then_some(Self::Fields(fields))
            }
            (DataType::List(source), DataType::List(target))
            | (DataType::LargeList(source), DataType::LargeList(target)) => {
                Self::cast(source.data_type(), target.data_type())
            }
            _ => Some(Self::Whole),
        }
    }

    /// Needs what `other` needs as well.
    pub(crate) fn merge(&mut self, other: Self) {
        match (self, other) {
            (Self::Whole, _) => {}
            (this, Self::Whole) => *this = Self::Whole,
            (Self::Fields(fields), Self::Fields(others)) => {
                for (name, need) in others {
                    fields.entry(name).or_default().merge(need);
                }
            }
        }
    }
}

/// Goes through the leaves of a column in file order and keeps those that are needed.
pub(crate) struct LeafWalk<'a> {
    next_leaf: usize,
    kept: &'a mut Vec<usize>,
}

impl<'a> LeafWalk<'a> {
    /// Starts at `first_leaf`, the column's first leaf. The leaves to read are added to `kept`, in
    /// ascending order.
    pub(crate) fn new(first_leaf: usize, kept: &'a mut Vec<usize>) -> Self {
        Self {
            next_leaf: first_leaf,
            kept,
        }
    }

    /// Keeps what is needed of `field`, and returns the field that the reader emits for it.
    ///
    /// A struct of which no needed field exists is kept whole. The reader leaves a struct without
    /// leaves out of the batch; the expression would then fail for another reason than it does on
    /// the complete column.
    pub(crate) fn keep(&mut self, field: &FieldRef, need: &Need) -> FieldRef {
        let data_type = match (need, field.data_type()) {
            (Need::Fields(needs), DataType::Struct(children))
                if children
                    .iter()
                    .any(|child| needs.contains_key(child.name())) =>
            {
                let mut kept = Vec::with_capacity(needs.len());
                for child in children {
                    match needs.get(child.name()) {
                        Some(need) => kept.push(self.keep(child, need)),
                        None => self.next_leaf += leaf_count(child.data_type()),
                    }
                }
                DataType::Struct(kept.into())
            }
            (Need::Fields(_), DataType::List(item)) => DataType::List(self.keep(item, need)),
            (Need::Fields(_), DataType::LargeList(item)) => {
                DataType::LargeList(self.keep(item, need))
            }
            (_, data_type) => {
                let end = self.next_leaf + leaf_count(data_type);
                self.kept.extend(self.next_leaf..end);
                self.next_leaf = end;
                return Arc::clone(field);
            }
        };
        Arc::new(Field::clone(field).with_data_type(data_type))
    }
}

/// How many Parquet leaves a column of this type has.
pub(crate) fn leaf_count(data_type: &DataType) -> usize {
    match data_type {
        DataType::Struct(children) => children
            .iter()
            .map(|child| leaf_count(child.data_type()))
            .sum(),
        data_type => only_child(data_type).map_or(1, leaf_count),
    }
}

/// Whether there is a struct at any depth; without one there is nothing to leave out.
pub(crate) fn contains_struct(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Struct(_)) || only_child(data_type).is_some_and(contains_struct)
}

/// The type inside a wrapper that has as many leaves as its content.
fn only_child(data_type: &DataType) -> Option<&DataType> {
    match data_type {
        DataType::List(child)
        | DataType::LargeList(child)
        | DataType::ListView(child)
        | DataType::LargeListView(child)
        | DataType::FixedSizeList(child, _)
        | DataType::Map(child, _)
        | DataType::RunEndEncoded(_, child) => Some(child.data_type()),
        DataType::Dictionary(_, value) => Some(value),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::datatypes::Fields;

    fn int(name: &str) -> Field {
        Field::new(name, DataType::Int64, true)
    }

    fn group(name: &str, children: Vec<Field>) -> Field {
        Field::new(name, DataType::Struct(Fields::from(children)), true)
    }

    fn list(name: &str, item: Field) -> Field {
        Field::new(name, DataType::List(Arc::new(item)), true)
    }

    fn map(name: &str, value: Field) -> Field {
        Field::new_map(
            name,
            "entries",
            int("key").with_nullable(false),
            value,
            false,
            true,
        )
    }

    fn path(names: &[&str]) -> Need {
        Need::path(names.iter().map(|name| (*name).to_owned()).collect())
    }

    /// Leaves and emitted field for `need` of a column whose first leaf is 10.
    fn walk(field: Field, need: &Need) -> (Vec<usize>, FieldRef) {
        let mut kept = Vec::new();
        let mut walk = LeafWalk::new(10, &mut kept);
        let emitted = walk.keep(&Arc::new(field.clone()), need);
        assert_eq!(walk.next_leaf, 10 + leaf_count(field.data_type()));
        (kept, emitted)
    }

    #[test]
    fn counts_leaves_through_every_wrapper() {
        let two = group("g", vec![int("a"), int("b")]);
        let two = || Arc::new(two.clone());
        let wrapped = [
            DataType::List(two()),
            DataType::LargeList(two()),
            DataType::ListView(two()),
            DataType::LargeListView(two()),
            DataType::FixedSizeList(two(), 3),
            DataType::Dictionary(
                Box::new(DataType::Int32),
                Box::new(two().data_type().clone()),
            ),
            DataType::RunEndEncoded(Arc::new(Field::new("e", DataType::Int32, false)), two()),
        ];
        for data_type in wrapped {
            assert_eq!(leaf_count(&data_type), 2, "{data_type}");
            assert!(contains_struct(&data_type), "{data_type}");
        }
        assert_eq!(leaf_count(map("m", int("v")).data_type()), 2);
        assert_eq!(leaf_count(&DataType::Utf8), 1);
        assert!(!contains_struct(list("l", int("item")).data_type()));
    }

    #[test]
    fn a_path_keeps_one_field_and_its_ancestors() {
        let field = group(
            "s",
            vec![int("a"), group("t", vec![int("x"), int("y")]), int("b")],
        );
        let (kept, emitted) = walk(field, &path(&["t", "y"]));
        assert_eq!(kept, [12]);
        assert_eq!(*emitted, group("s", vec![group("t", vec![int("y")])]));
    }

    #[test]
    fn needs_meet() {
        let field = group(
            "s",
            vec![int("a"), group("t", vec![int("x"), int("y")]), int("b")],
        );
        let mut need = path(&["t", "x"]);
        need.merge(path(&["b"]));
        assert_eq!(walk(field.clone(), &need).0, [11, 13]);
        need.merge(path(&["t"]));
        assert_eq!(walk(field.clone(), &need).0, [11, 12, 13]);
        need.merge(path(&["t", "y"]));
        assert_eq!(walk(field.clone(), &need).0, [11, 12, 13]);
        need.merge(Need::Whole);
        assert_eq!(need, Need::Whole);
        assert_eq!(
            walk(field.clone(), &need),
            (vec![10, 11, 12, 13], Arc::new(field))
        );
    }

    #[test]
    fn a_map_is_kept_whole() {
        let field = group(
            "s",
            vec![int("a"), map("m", group("v", vec![int("x"), int("y")]))],
        );
        let (kept, emitted) = walk(field.clone(), &path(&["m", "some key"]));
        assert_eq!(kept, [11, 12, 13]);
        let DataType::Struct(children) = field.data_type() else {
            unreachable!()
        };
        assert_eq!(*emitted, group("s", vec![Field::clone(&children[1])]));
    }

    #[test]
    fn a_cast_keeps_the_fields_that_its_target_names() {
        let item = group("item", vec![int("x"), int("y"), map("m", int("v"))]);
        let field = group("s", vec![int("a"), list("l", item)]);
        let target = group(
            "s",
            vec![
                list("l", group("other", vec![int("y"), int("absent")])),
                int("b"),
            ],
        );
        let need = Need::cast(field.data_type(), target.data_type()).unwrap();
        let (kept, emitted) = walk(field, &need);
        assert_eq!(kept, [12]);
        assert_eq!(
            *emitted,
            group("s", vec![list("l", group("item", vec![int("y")]))])
        );
    }

    #[test]
    fn a_cast_to_another_wrapper_needs_everything() {
        let item = || Arc::new(group("item", vec![int("x"), int("y")]));
        let small = DataType::List(item());
        let large = DataType::LargeList(item());
        assert_eq!(Need::cast(&small, &large), Some(Need::Whole));
        let maps = map("m", group("v", vec![int("x"), int("y")]));
        assert_eq!(
            Need::cast(maps.data_type(), maps.data_type()),
            Some(Need::Whole)
        );
    }

    #[test]
    fn a_struct_without_a_needed_field_is_kept_whole() {
        let field = group("s", vec![int("a"), group("t", vec![int("x"), int("y")])]);
        assert_eq!(walk(field.clone(), &path(&["absent"])).0, [10, 11, 12]);
        let target = group("s", vec![group("t", vec![int("absent")])]);
        assert_eq!(Need::cast(field.data_type(), target.data_type()), None);
    }

    #[test]
    fn metadata_and_nullability_of_kept_fields_stay() {
        let noted =
            |field: Field| field.with_metadata(HashMap::from([("k".to_owned(), "v".to_owned())]));
        let field = noted(group(
            "s",
            vec![noted(int("a")).with_nullable(false), int("b")],
        ));
        let (_, emitted) = walk(field.with_nullable(false), &path(&["a"]));
        let expected = noted(group("s", vec![noted(int("a")).with_nullable(false)]));
        assert_eq!(*emitted, expected.with_nullable(false));
    }
}

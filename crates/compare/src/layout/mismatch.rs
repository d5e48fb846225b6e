//! Defines why two tensors cannot be compared element by element.

/// Why two tensors cannot be compared element by element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotComparable {
    /// Their shapes, or the rows they declare, do not fit.
    Shapes(ShapeMismatch),
    /// No requested token position is in both.
    NoRows,
}

/// Why two tensors cannot be compared element by element.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum ShapeMismatch {
    /// The shapes cannot be matched.
    Shapes {
        /// The candidate's.
        candidate: Vec<usize>,
        /// The other side's.
        witness: Vec<usize>,
        /// Whether they may hold different token positions.
        may_be_rows: bool,
    },
    /// One of them has no elements.
    Empty,
    /// A requested row does not exist.
    RowOutside {
        /// The row.
        row: usize,
        /// How many there are.
        rows: usize,
    },
    /// It has no axis of positions.
    NoRowAxis,
    /// It holds another number of rows than it declares.
    RowCount {
        /// Rows in the file.
        held: usize,
        /// Rows declared.
        declared: usize,
    },
    /// More elements are named than a tensor of that shape has.
    TooManyValues {
        /// Elements that are named.
        values: usize,
        /// Elements of the shape.
        of: usize,
    },
}

impl ShapeMismatch {
    /// In words; `witness` is the name of the other side.
    pub fn words(&self, witness: &str) -> String {
        match self {
            ShapeMismatch::Shapes { candidate, witness: shape, may_be_rows } => {
                let advice = match may_be_rows {
                    true => "; say which token positions these are: --rows last, or 'rows' in dump.json",
                    false => "",
                };
                format!("shape {candidate:?} against the {witness}'s {shape:?}{advice}")
            }
            ShapeMismatch::Empty => "it has no elements".into(),
            ShapeMismatch::RowOutside { row, rows } => format!("row {row} asked for, {rows} rows there"),
            ShapeMismatch::NoRowAxis => "no row axis".into(),
            ShapeMismatch::RowCount { held, declared } => {
                format!("{held} rows in the file, {declared} rows declared")
            }
            ShapeMismatch::TooManyValues { values, of } => format!("{values} values of a tensor of {of}"),
        }
    }
}

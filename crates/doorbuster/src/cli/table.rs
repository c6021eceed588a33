//! Money and tables as people read them. Text that may be wide (titles, names) belongs in the last column,
//! which needs no padding.

use rules::money::Money;
use serde::Serialize;
use serde_json::json;

/// A whole list: JSON for scripts, `none` where it is empty, else the table that is made of it.
pub fn listing<T: Serialize>(
    items: &[T],
    json: bool,
    none: &str,
    table: impl FnOnce(&[T]) -> String,
) -> String {
    match items {
        _ if json => json!({"items": items, "next_cursor": null}).to_string(),
        [] => none.to_owned(),
        items => table(items),
    }
}

/// Which side of its column a cell leans to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lean {
    Left,
    Right,
}

/// Columns two blanks apart, as wide as their widest cell.
#[derive(Debug)]
pub struct Table {
    columns: Vec<Lean>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(heads: &[(&str, Lean)]) -> Self {
        let head = heads.iter().map(|(name, _)| (*name).to_owned()).collect();
        Self { columns: heads.iter().map(|(_, lean)| *lean).collect(), rows: vec![head] }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(one_line).collect());
    }

    pub fn render(&self) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&self.columns).zip(&widths).map(|((cell, lean), width)| match lean {
                Lean::Left => format!("{cell:<width$}"),
                Lean::Right => format!("{cell:>width$}"),
            });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        self.rows.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

/// A cell must not look like a row of its own.
fn one_line(cell: String) -> String {
    if cell.contains(char::is_control) { cell.replace(char::is_control, " ") } else { cell }
}

/// `149900` fen as `1499.00 CNY`.
pub fn money(money: Money) -> String {
    let digits = usize::try_from(money.currency.exponent()).unwrap_or(0);
    let text = format!("{:0>width$}", money.amount, width = digits + 1);
    let (whole, minor) = text.split_at(text.len().saturating_sub(digits));
    let point = if minor.is_empty() { "" } else { "." };
    format!("{whole}{point}{minor} {}", money.currency)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn money_has_its_point() {
        let of = |amount, currency: &str| money(Money { amount, currency: currency.parse().unwrap() });
        assert_eq!(of(149_900, "CNY"), "1499.00 CNY");
        assert_eq!(of(5, "EUR"), "0.05 EUR");
        assert_eq!(of(1_499, "JPY"), "1499 JPY");
    }

    #[test]
    fn a_cell_cannot_look_like_another_row() {
        let mut table = Table::new(&[("NAME", Lean::Left)]);
        table.row(["a\nb\u{1b}[2J".into()]);
        assert_eq!(table.render(), "NAME\na b [2J");
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&[("ID", Lean::Left), ("STOCK", Lean::Right), ("NAME", Lean::Left)]);
        table.row(["a".into(), "7".into(), "茅台".into()]);
        assert_eq!(table.render(), "ID  STOCK  NAME\na       7  茅台");
    }
}

//! What the demo prints for whoever wants to buy by hand: commands to paste into another terminal, each as wide as a
//! narrow one. Knows the API's addresses; calls nothing.

use std::path::Path;

/// Characters that a shell takes as they are.
const PLAIN: &str = "/._-+:@%,=";

/// The commands, from an empty shelf to a page where to pay.
#[derive(Clone, Copy, Debug)]
pub struct Recipe<'a> {
    pub url: &'a str,
    pub offer: &'a str,
    pub admin_key: &'a str,
    /// The crowd has bought everything.
    pub sold_out: bool,
}

impl Recipe<'_> {
    pub fn lines(&self, program: &Path) -> Vec<String> {
        let Self { url, offer, admin_key, sold_out } = *self;
        let mut lines = vec![format!("SHOP={url} OFFER={offer}")];
        if sold_out {
            let program = quoted(&program.to_string_lossy());
            lines.push(format!("KEY={admin_key}"));
            lines.push(format!(r"{program} \"));
            lines.push("  sale stock $OFFER +10 --server $SHOP --admin-key $KEY".to_owned());
        }
        let buying = [
            r#"field() { sed 's/.*"'$1'":"\([^"]*\)".*/\1/'; }"#,
            r#"TOKEN=$(curl -s $SHOP/api/v1/demo/login \"#,
            r#"  --json '{"buyer":"me"}' | field token)"#,
            r"GOT=$(curl -s $SHOP/api/v1/offers/$OFFER/pass \",
            r"  --oauth2-bearer $TOKEN --json '{}')",
            r#"PASS=$(echo "$GOT" | field pass); ORDER=$(echo "$GOT" | field order_id)"#,
            r"curl -s $SHOP/api/v1/offers/$OFFER/orders -H 'Prefer: wait=2' -w '\n' \",
            r#"  --json '{"pass":"'$PASS'","quantity":1}'"#,
            r"curl -s $SHOP/api/v1/orders/$ORDER/payment -w '\n' \",
            r#"  --oauth2-bearer $TOKEN --json '{"provider":"sandbox"}'"#,
        ];
        lines.extend(buying.map(str::to_owned));
        lines
    }
}

/// As one word of a shell's command.
fn quoted(word: &str) -> String {
    if word.chars().all(|character| character.is_ascii_alphanumeric() || PLAIN.contains(character)) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECIPE: Recipe<'_> = Recipe {
        url: "http://127.0.0.1:8080",
        offer: "01m7h12ebb6w9scvfaw00tvy23",
        admin_key: "0123456789abcdef0123456789abcdef",
        sold_out: true,
    };

    #[test]
    fn an_empty_shelf_is_filled_first() {
        let program = Path::new("/opt/doorbuster");
        let lines = RECIPE.lines(program);
        let stock = lines.iter().position(|line| line.contains("sale stock $OFFER +10"));
        assert!(lines.contains(&r"/opt/doorbuster \".to_owned()), "{lines:#?}");
        let login = lines.iter().position(|line| line.contains("/demo/login"));
        assert!(stock.is_some() && stock < login, "{lines:#?}");
        let full = Recipe { sold_out: false, ..RECIPE }.lines(program).join("\n");
        assert!(!full.contains("sale stock") && !full.contains(RECIPE.admin_key), "{full}");
    }

    #[test]
    fn every_line_but_the_programs_path_fits_eighty_columns() {
        for line in RECIPE.lines(Path::new("doorbuster")) {
            assert!(line.chars().count() + 4 <= 80, "{line}");
        }
    }

    #[test]
    fn a_path_with_a_space_is_one_word_for_the_shell() {
        assert_eq!(quoted("/opt/doorbuster-1.0/bin"), "/opt/doorbuster-1.0/bin");
        assert_eq!(quoted("/my shop's/doorbuster"), r"'/my shop'\''s/doorbuster'");
    }
}

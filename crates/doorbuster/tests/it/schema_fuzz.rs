//! The OpenAPI document against the running server: whatever the document allows or forbids, the server answers as it
//! says. The fuzzer is Schemathesis, with all its checks; nothing is left out.

mod heavy {
    use std::fmt::Write as _;
    use std::path::PathBuf;
    use std::time::Duration;

    use doorbuster::telemetry::metrics::{
        Answered, ChallengeOutcome, PassOutcome, RequestClass, StatusClass,
    };
    use serde_json::{Value, json};
    use testkit::process::{Program, Stream};

    use crate::app::{ADMIN_KEY, TestApp, TestSale, draft, draft_between};

    /// The everyday run repeats itself, so that a red run is about the change under test; another seed, and more
    /// examples, are for a search.
    const SEED: u32 = 9;

    /// Tries per call and phase, unless `TEST_FUZZ_EXAMPLES` says another number.
    const EXAMPLES: u32 = 50;

    /// The whole run; a fuzzer that hangs is a failed test.
    const PATIENCE: Duration = Duration::from_secs(500);

    /// What a request that fits the document may be told. Not `401`: all of them carry a token or a key that is good. `410`
    /// and `425` are of the clock, as `409` is of the state: they say nothing against the request.
    const FITTING: &str = r#""2xx", "3xx", 403, 404, 409, 410, 425, 429"#;

    /// What it sends must be signed by a provider, which no fuzzer does: it is told `401` for that.
    const SIGNED: &str = "POST /api/v1/payments/{provider}/callback";

    /// Calls with rules that no JSON schema can say, so that a fitting body may still be told `422`: times in their
    /// order or ahead of now, two prices in one currency that exists, a stock that two numbers make, a length in bytes,
    /// a quantity that each offer limits by itself, a cursor of our own making, a provider that the shop has set up, a
    /// sale that must exist, only so many secrets in a day. And `28.0` is an integer to a schema, and none to us.
    const RULES_BEYOND_A_SCHEMA: [(&str, &str); 19] = [
        ("POST", "/admin/v1/sales"),
        ("PATCH", "/admin/v1/sales/{sale}"),
        ("POST", "/admin/v1/sales/{sale}/offers"),
        ("PATCH", "/admin/v1/sales/{sale}/offers/{offer}"),
        ("POST", "/admin/v1/offers/{offer}/stock"),
        ("PUT", "/admin/v1/blocks/{buyer}"),
        ("POST", "/admin/v1/blocks/{buyer}/strikes"),
        ("GET", "/admin/v1/events"),
        ("POST", "/admin/v1/webhooks"),
        ("PATCH", "/admin/v1/webhooks/{webhook}"),
        ("POST", "/admin/v1/webhooks/{webhook}/replay"),
        ("POST", "/admin/v1/webhooks/{webhook}/secret"),
        ("POST", "/admin/v1/audit"),
        ("GET", "/admin/v1/orders"),
        ("GET", "/admin/v1/orders/export.csv"),
        ("POST", "/api/v1/demo/login"),
        ("POST", "/api/v1/offers/{offer}/orders"),
        ("POST", "/api/v1/orders/{id}/payment"),
        ("POST", "/sandbox/payments/{payment}"),
    ];

    /// Where a generated value is often replaced by one that names something.
    const NAMES: [(&str, &str); 15] = [
        ("path.sale", "sales"),
        ("path.offer", "offers"),
        ("path.id", "orders"),
        ("path.order", "orders"),
        ("path.buyer", "buyers"),
        ("path.webhook", "webhooks"),
        ("path.payment", "payments"),
        ("query.sale", "sales"),
        ("query.offer", "offers"),
        ("query.order", "orders"),
        ("query.buyer", "buyers"),
        ("body.pass", "passes"),
        ("path.audit", "audits"),
        ("body.sale_id", "sales"),
        ("body.offer_id", "offers"),
    ];

    #[tokio::test(flavor = "multi_thread")]
    async fn the_server_does_what_its_document_says() {
        let schemathesis = schemathesis();
        // A stream or a wait that ends soon is a call like any other.
        let settings = ["demo=true", "limits.stream_life_s=1", "limits.wait_s=1", "webhooks.timeout_s=1"];
        let app = TestApp::with(&settings).await;
        let folder = tempfile::tempdir().unwrap();
        let settings = folder.path().join("schemathesis.toml");
        std::fs::write(&settings, configuration(&app).await).unwrap();
        let examples = number("TEST_FUZZ_EXAMPLES").unwrap_or(EXAMPLES);
        let seed = number("TEST_FUZZ_SEED").unwrap_or(SEED);
        println!("TEST_FUZZ_SEED={seed} TEST_FUZZ_EXAMPLES={examples} repeats this run");
        let fuzzer = Program::new(schemathesis)
            .arg("--config-file")
            .arg(&settings)
            .args(["run", &app.url("/api/openapi.json"), "--checks", "all", "--request-timeout", "10"])
            .args(["--max-examples", &examples.to_string(), "--seed", &seed.to_string()])
            .args(["--no-color", "--generation-database", "none"])
            .folder(folder.path())
            .start()
            .unwrap();
        let ended = tokio::task::spawn_blocking(move || {
            let ended = fuzzer.wait(PATIENCE);
            testkit::eventually(PATIENCE, || fuzzer.output_ended());
            (ended, fuzzer.lines())
        });
        let (ended, lines) = ended.await.unwrap();
        let said: String = lines.iter().map(|line| line.text.clone() + "\n").collect();
        assert!(ended.expect("the fuzzer did not end").success(), "{said}");
        let tested = document(&app).await;
        assert!(said.contains(&format!("Tested: {tested}\n")), "not all {tested} calls were tested:\n{said}");
        assert!(lines.iter().all(|line| line.stream == Stream::Stdout || line.text.is_empty()), "{said}");
        assert_let_in(&app, examples.into());
    }

    /// A fuzzer whom nobody lets in finds nothing, and says that all is well.
    fn assert_let_in(app: &TestApp, examples: u64) {
        let metrics = &app.app.metrics;
        let operator = metrics.requests.get(Answered(RequestClass::Operator, StatusClass::Success));
        let (passes, challenges) =
            (metrics.passes.get(PassOutcome::Issued), metrics.challenges.get(ChallengeOutcome::Issued));
        println!(
            "let in: {operator} calls of the operator; {passes} passes and {challenges} challenges of buyers"
        );
        assert!(operator >= 2 * examples, "the operator was answered {operator} times");
        assert!(passes + challenges > 0, "no buyer was given a pass or a challenge");
    }

    /// As `cargo xtask test` tells it, or where it puts it.
    fn schemathesis() -> PathBuf {
        if let Some(told) = std::env::var_os("TEST_SCHEMATHESIS") {
            return told.into();
        }
        let mut above = std::path::Path::new(env!("CARGO_BIN_EXE_doorbuster")).ancestors();
        let found =
            above.find_map(|folder| Some(folder.join("venv/bin/schemathesis")).filter(|path| path.exists()));
        found.expect("Schemathesis is not there: run `cargo xtask test`, which installs it and says where")
    }

    fn number(variable: &str) -> Option<u32> {
        let text = std::env::var(variable).ok()?;
        Some(text.parse().unwrap_or_else(|error| panic!("{variable}={text}: {error}")))
    }

    /// How many calls the document has.
    async fn document(app: &TestApp) -> usize {
        let document = app.call("GET", "/api/openapi.json", None, None, 200).await;
        document["paths"].as_object().unwrap().values().map(|calls| calls.as_object().unwrap().len()).sum()
    }

    /// Who asks, what there is to ask for, and what may be answered.
    async fn configuration(app: &TestApp) -> String {
        let ann = app.buyer("ann");
        let mut text = format!(
            "[auth.openapi.buyer_token]\nbearer = \"{}\"\n[auth.openapi.admin_key]\nbearer = \"{ADMIN_KEY}\"\n\
             [checks.positive_data_acceptance]\nexpected-statuses = [{FITTING}]\n",
            ann.token
        );
        for (name, values) in names(app).await {
            writeln!(text, "[dictionaries.{name}]\nvalues = {}", json!(values)).unwrap();
        }
        text.push_str("[parameters]\n");
        for (parameter, names) in NAMES {
            writeln!(text, "\"{parameter}\" = {{ dictionary = \"{names}\", probability = 0.5 }}").unwrap();
        }
        // By its name: of a method and a path, either would be enough to fit.
        let mut also = |call: &str, status: u16| {
            writeln!(text, "[[operations]]\ninclude-name = \"{call}\"").unwrap();
            writeln!(text, "checks.positive_data_acceptance.expected-statuses = [{FITTING}, {status}]")
                .unwrap();
        };
        also(SIGNED, 401);
        RULES_BEYOND_A_SCHEMA.iter().for_each(|(method, path)| also(&format!("{method} {path}"), 422));
        text
    }

    /// Sales in several states, with an order, a pass that was used and one that was not.
    async fn names(app: &TestApp) -> [(&'static str, Vec<String>); 8] {
        let with = |mut draft: Value, field: &str, value: &str| {
            draft[field] = json!(value);
            draft
        };
        let open = app.open_sale(1_000).await;
        let mut sales = vec![
            app.open_sale(1_000).await,
            app.publish(with(draft(10), "challenge", "pow")).await,
            app.publish(with(draft(10), "challenge", "picture")).await,
            app.publish(with(draft_between(3_600, 7_200, 10), "registration", "required")).await,
            app.publish(draft_between(-7_200, -3_600, 10)).await,
        ];
        let unpublished = app.operate("POST", "/admin/v1/sales", Some(&draft(10)), 201).await;
        let id_of = |value: &Value| value["id"].as_str().unwrap().to_owned();
        sales.push(TestSale { id: id_of(&unpublished), offers: vec![id_of(&unpublished["offers"][0])] });
        let ann = app.buyer("ann");
        let used = ann.mint(open.offer());
        let order = id_of(&ann.buy_with(open.offer(), &used, 1, 202).await);
        ann.order(&order).await;
        let pay = format!("/api/v1/orders/{order}/payment");
        let payment = ann.call("POST", &pay, Some(&json!({"provider": "sandbox"})), 200).await;
        let unused = ann.mint(sales[0].offer());
        // Disabled: the fuzzer is after our answers, not after a stranger's server.
        let hook = json!({"url": "https://shop.example/hooks", "disabled": true});
        let webhook = app.operate("POST", "/admin/v1/webhooks", Some(&hook), 201).await;
        let audit = app.audited(&json!({})).await;
        sales.insert(0, open);
        [
            ("sales", sales.iter().map(|sale| sale.id.clone()).collect()),
            ("offers", sales.iter().map(|sale| sale.offer().to_owned()).collect()),
            ("orders", vec![order]),
            ("buyers", vec!["ann".to_owned(), "ben".to_owned()]),
            ("passes", vec![used, unused]),
            ("webhooks", vec![id_of(&webhook)]),
            ("payments", vec![payment["payment_id"].as_str().unwrap().to_owned()]),
            ("audits", vec![id_of(&audit)]),
        ]
    }
}

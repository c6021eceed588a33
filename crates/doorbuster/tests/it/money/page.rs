//! The sandbox's page as its reader has it: in a real browser, pressed with a real pointer. What became of it is read from
//! the public calls.

mod heavy {
    use testkit::browser::{Browser, Page};

    use super::super::*;

    const DESKTOP: (u32, u32) = (1_280, 900);
    const PHONE: (u32, u32) = (390, 844);

    /// The smallest side of what a finger must meet, in CSS pixels.
    const FINGER: f64 = 44.0;

    const BUTTONS: [&str; 4] = ["#pay", "#fail", "#late", "#twice"];

    /// An order of this buyer, and the page of a payment of it.
    async fn at_the_sandbox(buyer: &TestBuyer<'_>, sale: &TestSale, page: &mut Page) -> String {
        let id = won(buyer, sale).await;
        let given = start(buyer, &id, "sandbox", 200).await;
        page.open(given["pay_url"].as_str().unwrap()).await.unwrap();
        shows(page, "order", "Waits for payment").await;
        id
    }

    /// Waits until a part of the page, by its id, holds this text.
    async fn shows(page: &mut Page, part: &str, text: &str) {
        let held = format!("document.getElementById('{part}').textContent.includes({})", json!(text));
        page.until(&held).await.unwrap();
    }

    /// A picture for whoever wants to look, beside what was built.
    async fn keep_picture(page: &mut Page, name: &str) {
        let picture = page.picture().await.unwrap();
        assert!(picture.starts_with(b"\x89PNG"), "{name}");
        std::fs::write(std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name), picture).unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn every_button_of_the_sandbox_does_what_it_says() {
        let (app, sale) = shop(5).await;
        let browser = Browser::launch().await.unwrap();
        let mut page = browser.page().await.unwrap();
        page.resize(DESKTOP.0, DESKTOP.1, false).await.unwrap();
        page.speak("en-GB").await.unwrap();

        let ann = app.buyer("ann");
        let paid = at_the_sandbox(&ann, &sale, &mut page).await;
        assert!(page.text("#amount").await.unwrap().contains("1,499.00"));
        shows(&mut page, "time", "left to pay").await;
        assert_eq!(page.text("#which").await.unwrap(), format!("Order {paid}"));
        assert_eq!(page.text("#pay").await.unwrap(), "Pay");
        let before = page.area("#pay").await.unwrap();
        page.click("#pay").await.unwrap();
        shows(&mut page, "said", "the callback answered 200").await;
        shows(&mut page, "order", "Paid. Thank you").await;
        shows(&mut page, "captures", "pays the order").await;
        shows(&mut page, "pay", "Pay again").await;
        assert_eq!(order(&ann, &paid).await["state"], "paid");
        assert_eq!(states(&app, &paid).await, [plain("applied")]);
        assert_eq!(page.area("#pay").await.unwrap(), before, "a button never moves");
        keep_picture(&mut page, "sandbox-desktop.png").await;

        let bob = app.buyer("bob");
        let failed = at_the_sandbox(&bob, &sale, &mut page).await;
        page.click("#fail").await.unwrap();
        shows(&mut page, "happenings", "Callback 1 of 1: failed, answered 200").await;
        assert_eq!(states(&app, &failed).await, [plain("closed")]);
        assert_eq!(order(&bob, &failed).await["state"], "awaiting_payment");

        let cyd = app.buyer("cyd");
        let twice = at_the_sandbox(&cyd, &sale, &mut page).await;
        page.click("#twice").await.unwrap();
        shows(&mut page, "captures", "is back (second_capture)").await;
        assert_eq!(order(&cyd, &twice).await["state"], "paid");
        assert_eq!(states(&app, &twice).await, [plain("applied"), back("second_capture")]);

        let dan = app.buyer("dan");
        let late = at_the_sandbox(&dan, &sale, &mut page).await;
        page.fill("#seconds", "3").await.unwrap();
        page.click("#late").await.unwrap();
        shows(&mut page, "said", "The callback leaves in 3 s.").await;
        shows(&mut page, "happenings", "In 3 s: paid").await;
        // By itself: nobody touches the page again.
        shows(&mut page, "order", "Paid. Thank you").await;
        assert_eq!(order(&dan, &late).await["state"], "paid");
        let seen = payments(&app, &late).await;
        let times = ["started_at", "captured_at"].map(|name| seen[0][name].as_str().unwrap().to_owned());
        let [started, captured] = times.map(|time| UnixMs::parse(&time).unwrap());
        assert!(started.ms_until(captured) >= 3_000, "{seen:?}");

        assert_eq!(page.problems(), [] as [String; 0], "nothing went wrong, and its policy forbade nothing");
        browser.close().await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_sandbox_fits_a_phone_and_speaks_chinese() {
        let (app, sale) = shop(1).await;
        let ann = app.buyer("ann");
        let id = won(&ann, &sale).await;
        let given = start(&ann, &id, "sandbox", 200).await;
        let browser = Browser::launch().await.unwrap();
        let mut page = browser.page().await.unwrap();
        page.resize(PHONE.0, PHONE.1, true).await.unwrap();
        page.speak("zh-CN").await.unwrap();
        page.open(given["pay_url"].as_str().unwrap()).await.unwrap();
        shows(&mut page, "order", "等待付款").await;
        assert_eq!(page.evaluate("document.title").await.unwrap(), "沙箱付款 · Doorbuster");
        assert_eq!(page.evaluate("document.documentElement.lang").await.unwrap(), "zh-Hans");
        assert_eq!(page.text("#pay").await.unwrap(), "付款");
        let wide = page.evaluate("document.documentElement.scrollWidth").await.unwrap();
        assert!(wide.as_u64().unwrap() <= u64::from(PHONE.0), "{wide} wide");
        for button in BUTTONS {
            let area = page.area(button).await.unwrap();
            assert!(area.width >= FINGER && area.height >= FINGER, "{button}: {area:?}");
        }
        keep_picture(&mut page, "sandbox-phone.png").await;
        page.click("#pay").await.unwrap();
        shows(&mut page, "order", "付款成功").await;
        assert_eq!(order(&ann, &id).await["state"], "paid");
        assert_eq!(page.problems(), [] as [String; 0]);
        browser.close().await.unwrap();
    }
}

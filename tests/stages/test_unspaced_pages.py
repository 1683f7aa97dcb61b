"""What all four filters together make of whole pages in scripts without spaces: articles stay; spam, lists of links, and repeated
lines go, by a rule made for them. The pages were written for this test."""

from __future__ import annotations

import pyarrow as pa
import pytest

from manifests.rules import decide
from stages import registry

CHINESE = """城西的老图书馆在关闭三年之后，上个星期六重新开放了。清晨不到八点，门口已经排起了长队，有人带着孩子，有人带着折叠椅，还有一位老先生抱着一本四十年前借走的小说。
馆长林女士说，修缮工程比预想的困难得多。屋顶的木梁被白蚁蛀空了一半，地下书库又在前年夏天的暴雨里进了水，工人们花了整整四个月才把墙壁烘干。
“我们最担心的不是钱，而是那些旧报纸。”她说，“它们一碰就碎，只能一张一张地拍照，再放进无酸的纸盒里。”
新的阅览室保留了原来的绿色台灯，但是书架降低了，坐轮椅的读者也能够拿到最上面一层的书。儿童区铺了木地板，窗外正好对着河边的柳树。
开放当天一共办了六百多张借书证。管理员告诉记者，借得最多的不是畅销书，而是地方志和旧地图，因为不少居民想知道自己住的街道从前是什么样子。
那位老先生最后还是把小说还了。他笑着问要不要付罚款，林女士摇摇头，在登记簿上写下：归还，状况良好。"""
JAPANESE = """港の近くにある小さな時計店は、今年で創業八十年を迎えた。店主の佐藤さんは三代目で、朝の七時から夜の八時まで、ほとんど休まずに机に向かっている。
店の中には古い柱時計が二十台ほど並んでいて、正午になると少しずつずれながら一斉に鳴り始める。佐藤さんはその音を聞けば、どの時計が遅れているのかすぐに分かると言う。
修理を頼まれる時計の多くは、祖父や祖母から受け継がれたものだ。部品はもう作られていないので、歯車を一枚ずつ削り出すことも珍しくない。
「直らない時計はありません。ただ、時間がかかるだけです。」と佐藤さんは笑う。
最近では、遠くの町から若い人が弟子になりたいと訪ねてくるようになった。来年の春には、店の二階に小さな教室を開くつもりだという。"""
THAI = """เช้าวันเสาร์ที่ผ่านมา ชาวบ้านริมคลองกว่าสามร้อยคนมารวมตัวกันที่ศาลาวัดเพื่อช่วยกันทำความสะอาดลำคลองที่ตื้นเขินมานานหลายปี
ผู้ใหญ่บ้านเล่าว่าเมื่อก่อนน้ำในคลองใสจนมองเห็นปลา เด็ก ๆ ลงเล่นน้ำได้ทุกวัน แต่หลังจากมีการสร้างถนนเส้นใหม่ น้ำก็ไม่ไหลและเริ่มส่งกลิ่น
กลุ่มคนหนุ่มสาวในหมู่บ้านจึงชวนกันเก็บขยะและขุดลอกดินเลนด้วยมือ โดยได้รับความช่วยเหลือจากโรงเรียนและร้านค้าในตลาดที่นำอาหารกับน้ำดื่มมาให้
หลังจากทำงานกันตลอดทั้งวัน น้ำก็เริ่มไหลอีกครั้ง คุณยายคนหนึ่งบอกว่าไม่ได้เห็นภาพแบบนี้มาเกือบยี่สิบปีแล้ว และหวังว่าลูกหลานจะช่วยกันดูแลต่อไป"""

SPAM = "澳门娱乐城官网注册送彩金，葡京棋牌下载，北京赛车开奖结果，时时彩计划群，真人百家乐，老虎机游戏平台。"
LINKS = "\n".join(
    f"{name} | http://www.example{number}.cn/list/{number}.html"
    for number, name in enumerate(
        "首页 新闻 财经 体育 娱乐 科技 汽车 房产 教育 健康 旅游 美食 军事 历史 文化 游戏 动漫 音乐 电影 图片".split()
    )
)
MENU = "\n".join("首页 新闻 公司简介 产品中心 联系方式 在线留言 人才招聘 网站地图 友情链接 关于本站".split() * 3)
NOTICE = "本站所有内容均来自网络，如有侵权请及时与管理员联系，我们将在第一时间删除。"
KEYWORDS = "，".join(
    f"{city}{service}"
    for city in "北京 上海 广州 深圳 天津 重庆 成都 武汉".split()
    for service in "搬家公司 开锁电话 管道疏通 空调维修 代办执照".split()
)


def verdict(text: str, language: str) -> list[str]:
    """The rules that fail, in declared order."""
    batch = pa.record_batch({"text": pa.array([text], pa.large_string()), "language": pa.array([language])})
    rules, signals = [], {}
    for name in ("gopher_quality", "gopher_repetition", "c4", "fineweb"):
        implementation = registry.find(name)
        one = implementation(implementation.options_type())
        rules += one.rules()  # type: ignore[union-attr]
        signals.update(one.measure(batch).signals)  # type: ignore[union-attr]
    return decide(rules, pa.table(signals)).failed[0].as_py()


@pytest.mark.parametrize("text, language", [(CHINESE, "zh"), (JAPANESE, "ja"), (THAI, "th")])
def test_an_article_passes_every_rule(text: str, language: str) -> None:
    assert verdict(text, language) == []


@pytest.mark.parametrize(
    "text, rule",
    [
        (SPAM * 12, "gopher_repetition.max_duplicate_5_gram_unspaced"),
        ("\n".join([SPAM] * 12), "gopher_repetition.max_duplicate_lines"),
        (SPAM * 3, "gopher.min_stop_characters_unspaced"),
        (KEYWORDS, "gopher.min_stop_characters_unspaced"),
        (LINKS, "gopher.min_script_share_unspaced"),
        (MENU, "gopher_repetition.max_duplicate_lines"),
        (MENU, "fineweb.max_short_lines_unspaced"),
        (CHINESE + f"\n{NOTICE}" * 9, "gopher_repetition.max_duplicate_line_characters"),
        ("好" * 400, "gopher_repetition.max_top_2_gram_unspaced"),
        (CHINESE.replace("\n", "")[:90], "gopher.min_characters_unspaced"),
        (CHINESE.replace("。", "★").replace("，", "◆◆"), "c4.min_sentences"),
    ],
)
def test_spam_links_and_repetition_go_by_a_rule_made_for_them(text: str, rule: str) -> None:
    assert rule in verdict(text, "zh")


@pytest.mark.parametrize("text, language", [(JAPANESE, "ja"), (THAI, "th")])
def test_a_page_that_repeats_itself_goes_in_any_such_script(text: str, language: str) -> None:
    first = text.split("\n")[0]
    assert "gopher_repetition.max_duplicate_lines" in verdict("\n".join([first] * 6), language)
    assert "gopher_repetition.max_duplicate_10_gram_unspaced" in verdict(first * 6, language)


def test_words_would_have_misjudged_the_articles() -> None:
    """Why there is a rule set for characters: by words an article of 500 characters is a handful of words, each far too long."""
    for text in (CHINESE, JAPANESE):
        assert {"gopher.min_words", "gopher.max_mean_word_length"} <= set(verdict(text, "en"))
